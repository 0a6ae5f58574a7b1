"""Devices: how they are arranged, which of them holds what, and all that they send each other."""
