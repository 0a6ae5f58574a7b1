"""Comparisons: several runs under one budget on the same text, and a report of the results."""
