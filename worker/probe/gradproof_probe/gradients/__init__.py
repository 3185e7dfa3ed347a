"""Analytic against numeric derivatives: evaluating, probing, locating, naming the cause."""
