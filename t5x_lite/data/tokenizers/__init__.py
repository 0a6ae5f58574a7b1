"""Tokenizers: trained here, or loaded from existing files."""
