"""Fourteen modules compiled, and what compile_equivalence says of each."""
