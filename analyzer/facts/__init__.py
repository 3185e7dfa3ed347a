"""What is true of torch itself, generated from an installed one by `make facts` and read back without it.

Nothing in the data files is typed in by hand.
"""

from analyzer.facts.loader import Names, Operations, names, operations
from analyzer.facts.publication import (
    SAME_ARGUMENTS,
    Deprecation,
    Deprecations,
    GraphBreaks,
    History,
    Signatures,
    deprecations,
    graph_breaks,
    history,
    signatures,
)

__all__ = [
    "SAME_ARGUMENTS",
    "Deprecation",
    "Deprecations",
    "GraphBreaks",
    "History",
    "Names",
    "Operations",
    "Signatures",
    "deprecations",
    "graph_breaks",
    "history",
    "names",
    "operations",
    "signatures",
]
