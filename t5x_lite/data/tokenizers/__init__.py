"""Tokenizers: trained here, or the files of others."""
