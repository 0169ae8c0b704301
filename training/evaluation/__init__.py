"""What every predictor is judged by: errors, baselines, and what changed since a version."""
