"""How answers are shown: terminal tables and an offline page."""
