"""What is fitted to rows, on all of them or on a fold."""
