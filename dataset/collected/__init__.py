"""What we measured ourselves: rows of the collector, what of them is no label, and their graphs."""
