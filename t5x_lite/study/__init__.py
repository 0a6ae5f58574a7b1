"""Runs side by side: compare, report."""
