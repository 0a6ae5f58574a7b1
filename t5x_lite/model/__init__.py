"""One Transformer, in flax linen: pure functions of parameters and rows. Nothing here opens a
file.
"""
