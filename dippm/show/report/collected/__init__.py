"""A collected set as one page: coverage, noise, failures, and prediction errors."""
