"""The routes of the REST API, a module for each group of calls."""
