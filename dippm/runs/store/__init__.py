"""Runs: what is recorded of one, the folder it is written to, and the store that keeps it."""
