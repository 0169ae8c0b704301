"""Training of the predictor of training steps."""
