"""Runs: tracked, stored, planned and placed on shared devices."""
