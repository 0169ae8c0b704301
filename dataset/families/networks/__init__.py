"""The modules behind the families, in plain torch: one file per kind of network."""
