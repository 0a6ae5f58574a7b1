"""Text: the sources it comes from, and the cleaning of text that has issues."""
