"""Text: where it comes from, and how it is cleaned."""
