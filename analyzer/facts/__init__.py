"""What is true of torch itself, generated from an installed one by `make facts` and read back without it.

Nothing in the data files is typed in by hand.
"""

from analyzer.facts.loader import Names, Operations, names, operations

__all__ = ["Names", "Operations", "names", "operations"]
