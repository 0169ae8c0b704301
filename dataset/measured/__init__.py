"""Published measurements of others: their tables in one schema, and graphs of their rows."""
