"""A local page on which models write, fill in and score side by side."""
