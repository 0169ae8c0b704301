"""Published measured tables of others: their addresses, and conversions to our tables."""
