"""Studies that are run once; the documentation quotes their results."""
