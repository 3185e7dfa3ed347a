"""What need not be run again, because nothing that its results rest on has changed."""
