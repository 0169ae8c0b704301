"""Measuring the cost of a run: counters, and the protocol that turns them into a measurement."""
