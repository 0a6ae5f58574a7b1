"""t5x_lite: pretrain BERT, T5 and GPT from one codebase, and compare what they learn."""

__version__ = "0.1.0"
