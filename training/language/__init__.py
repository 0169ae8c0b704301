"""What language models are learned from and held against, beside the shipped checkpoint."""
