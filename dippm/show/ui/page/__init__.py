"""The part of the page that uses Dash."""
