"""Inference: generate, fill blanks, score, embed, run tasks."""
