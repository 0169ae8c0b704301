"""Predicted beside measured, with the error of each quantity."""
