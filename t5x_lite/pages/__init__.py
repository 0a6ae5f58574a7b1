"""Pages that a command serves on this machine: `play` tries models, `watch` follows runs."""
