"""Targets and the results of their checks, as rows. This package must not run anything."""
