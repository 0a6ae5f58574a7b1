"""Rows: windows of text under an objective, or packed examples, in batches."""
