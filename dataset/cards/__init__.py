"""What says what the data is: the datasheet and the Croissant description, both generated."""
