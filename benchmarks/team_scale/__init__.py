"""A service with years behind it: how fast its pages and lists still are (`make bench-team`)."""
