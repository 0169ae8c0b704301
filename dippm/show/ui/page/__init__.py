"""What of the page knows Dash."""
