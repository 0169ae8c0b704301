"""Counters of the machine, one family per file; each is read in the same way."""
