"""Measurements → training data. Not part of the installed package."""
