"""Runs as they happen: commands from outside, blocks and functions from inside."""
