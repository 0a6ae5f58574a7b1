"""One Transformer in flax linen, as pure functions of parameters and rows. Nothing here opens a
file.
"""
