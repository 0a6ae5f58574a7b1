"""Fine-tune a model on a task."""
