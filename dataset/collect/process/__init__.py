"""The process that measures, and the collector's end of it."""
