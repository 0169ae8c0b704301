"""The process that measures, and the collector's handle of it."""
