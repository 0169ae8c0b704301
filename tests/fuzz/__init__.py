"""Every kind of file that DIPPM reads, and what damages it: see `formats` and `__main__`."""
