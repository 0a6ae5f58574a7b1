"""Report pages, with their charts and tables."""
