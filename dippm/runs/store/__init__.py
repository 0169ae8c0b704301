"""The record of a run, the folder it is written to, and the store that keeps it."""
