"""The same call run in two ways, and what came out of each compared tensor by tensor."""
