"""Other people's measured tables: where each is published, and how ours is made of it."""
