"""The runtime checks, one class a module. `ALL_CHECKS` is what documentation is made from."""

from __future__ import annotations

from typing import Final

from gradproof_probe.checks.base import Check
from gradproof_probe.checks.compile_equivalence import CompileEquivalence
from gradproof_probe.checks.device_compare import DeviceCompare
from gradproof_probe.checks.finding_search import FindingSearch
from gradproof_probe.checks.gradcheck import Gradcheck
from gradproof_probe.checks.gradgradcheck import Gradgradcheck
from gradproof_probe.checks.nan_gradient import NanGradient

ALL_CHECKS: Final[tuple[Check, ...]] = (
    Gradcheck(),
    Gradgradcheck(),
    NanGradient(),
    FindingSearch(),
    CompileEquivalence(),
    DeviceCompare(),
)


def find_check(name: str) -> Check:
    """Raises `KeyError` for a name that this version doesn't know."""
    return {check.name: check for check in ALL_CHECKS}[name]
