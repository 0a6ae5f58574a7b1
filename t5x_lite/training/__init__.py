"""One loop for every objective and architecture, over every mesh."""
