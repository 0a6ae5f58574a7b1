"""Text: the sources it comes from, and what is done with text that is not clean."""
