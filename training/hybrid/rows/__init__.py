"""Measured rows → kernels as arrays, watts and bytes: what the default predictor learns from."""
