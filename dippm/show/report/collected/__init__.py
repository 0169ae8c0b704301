"""A collected set as one page: what it covers, how noisy it is, what failed, what was predicted."""
