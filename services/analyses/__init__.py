"""Analyses: submission, progress, results, settlement. The use cases that the API and the worker share."""
