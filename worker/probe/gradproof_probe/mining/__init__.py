"""Recipes from real calls: the repository's own examples and its running parents, recorded and written down."""
