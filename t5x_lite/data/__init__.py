"""Text to rows, in numpy alone: importing this package never imports jax."""
