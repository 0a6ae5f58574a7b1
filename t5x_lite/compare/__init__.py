"""Comparisons: several runs under one budget, on the same text, and what came of them."""
