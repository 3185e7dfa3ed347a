"""Projects: what a team watches. Minimal for now: a name that analyses can be filed under."""
