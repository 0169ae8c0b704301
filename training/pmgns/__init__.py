"""The network that D3.5 documents: rows of one GPU, or of a set of our own → its checkpoints."""
