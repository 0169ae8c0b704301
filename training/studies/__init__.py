"""Questions asked once, whose answers the documentation quotes."""
