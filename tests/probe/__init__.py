"""Tests of the probe."""
