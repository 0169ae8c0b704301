"""Data and corrections of language models, besides the shipped checkpoint."""
