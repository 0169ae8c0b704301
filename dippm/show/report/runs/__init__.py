"""Runs as lists and plots: a catalogue of charts, and back-ends that draw them."""
