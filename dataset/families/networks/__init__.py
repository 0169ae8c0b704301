"""The modules of the families, in plain torch: one file per kind of network."""
