"""What happened: runs that are tracked, stored, planned and placed on shared devices."""
