"""Runs as lists and plots: what can be drawn of them, and the same chart in every back-end."""
