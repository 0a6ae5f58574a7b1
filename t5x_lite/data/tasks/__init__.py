"""Tasks: examples, how each family reads them, and how predictions are judged."""
