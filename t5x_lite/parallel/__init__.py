"""Devices: how they are arranged, what each of them holds, and what they send each other."""
