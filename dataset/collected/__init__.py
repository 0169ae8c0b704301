"""Our own measurements: rows of the collector, their exclusions, and their graphs."""
