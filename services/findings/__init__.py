"""What is known about findings once checks have run."""
