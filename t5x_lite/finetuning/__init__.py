"""Fine-tuning a model on a task."""
