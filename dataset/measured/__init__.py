"""Measurements that others published: their tables in one schema, and graphs of their rows."""
