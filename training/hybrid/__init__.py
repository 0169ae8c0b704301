"""The default predictor: measured rows of many GPUs → the checkpoint `hybrid-gpu`."""
