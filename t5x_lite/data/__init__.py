"""From text to rows, in numpy only: importing this package never imports jax."""
