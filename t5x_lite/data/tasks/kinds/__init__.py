"""Kinds of tasks, one file each."""
