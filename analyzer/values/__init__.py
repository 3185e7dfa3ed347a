"""What is known of a value before anything is run: its range, its kind, whether a gradient flows through it."""
