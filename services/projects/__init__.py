"""Projects: what a team watches, what it asks of it, whom it tells."""
