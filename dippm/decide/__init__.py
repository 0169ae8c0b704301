"""Answers become decisions: which GPU, which batch, which design, how many, and why."""
