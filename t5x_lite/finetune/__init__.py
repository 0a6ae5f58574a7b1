"""Fine-tuning of a model on a task."""
