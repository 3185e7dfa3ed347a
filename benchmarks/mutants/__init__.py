"""A public benchmark for gradient checks: right `autograd.Function`s, and wrong ones with a known fault.

`rights()` are correct in every regime of `Right.regimes`: what a check objects to there is a false alarm. `mutants()`
of a right one are truly wrong, shown by running both in the situation where the fault bites. How it is built, and how
far to trust it: docs/benchmark-gradients.md. `VERSION` changes with every Function, kind or draw.
"""

from benchmarks.mutants.corpus import FORMULA, Mutant, mutants, profile, rights
from benchmarks.mutants.draws import REGIMES, Draw
from benchmarks.mutants.kinds import KINDS, Kind
from benchmarks.mutants.register import Right, Slip
from benchmarks.mutants.rewriting import Edit

VERSION = "1"

__all__ = [
    "FORMULA",
    "KINDS",
    "REGIMES",
    "VERSION",
    "Draw",
    "Edit",
    "Kind",
    "Mutant",
    "Right",
    "Slip",
    "mutants",
    "profile",
    "rights",
]
