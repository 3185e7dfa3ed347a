"""Kinds of conditional faults that were written without knowledge of the gradient engine.

The corpus in `benchmarks.mutants` grows with the engine, so its figures say that the engine does what it was built for.
These two sets say how it fares with faults that nobody had in mind while building it: each was measured once before
the engine learnt from it. Nothing in here may be imported by the engine, and no case may be changed to suit it: a
changed case would make the first figures in docs/benchmark-unseen.md meaningless. New ideas go into a new set.
"""
