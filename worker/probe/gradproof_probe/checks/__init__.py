"""The runtime checks, one class a module. `ALL_CHECKS` is what documentation is made from."""

from __future__ import annotations

from typing import Final

from gradproof_probe.checks.accumulation_equivalence import AccumulationEquivalence
from gradproof_probe.checks.autocast import Autocast
from gradproof_probe.checks.base import Check
from gradproof_probe.checks.batch_consistency import BatchConsistency
from gradproof_probe.checks.checkpoint_equivalence import CheckpointEquivalence
from gradproof_probe.checks.compile_equivalence import CompileEquivalence
from gradproof_probe.checks.ddp_consistency import DDPConsistency
from gradproof_probe.checks.device_compare import DeviceCompare
from gradproof_probe.checks.eval_side_effects import EvalSideEffects
from gradproof_probe.checks.export_equivalence import ExportEquivalence
from gradproof_probe.checks.finding_search import FindingSearch
from gradproof_probe.checks.gradcheck import Gradcheck
from gradproof_probe.checks.gradgradcheck import Gradgradcheck
from gradproof_probe.checks.gradient_flow import GradientFlow
from gradproof_probe.checks.hvp import HessianVectorProduct
from gradproof_probe.checks.memory import Memory
from gradproof_probe.checks.nan_gradient import NanGradient
from gradproof_probe.checks.portrait import Portrait
from gradproof_probe.checks.state_dict import StateDict
from gradproof_probe.checks.training_step import TrainingStep

ALL_CHECKS: Final[tuple[Check, ...]] = (
    Gradcheck(),
    Gradgradcheck(),
    NanGradient(),
    FindingSearch(),
    EvalSideEffects(),
    StateDict(),
    GradientFlow(),
    BatchConsistency(),
    TrainingStep(),
    CheckpointEquivalence(),
    AccumulationEquivalence(),
    Memory(),
    HessianVectorProduct(),
    Autocast(),
    ExportEquivalence(),
    DDPConsistency(),
    Portrait(),
    CompileEquivalence(),
    DeviceCompare(),
)


def find_check(name: str) -> Check:
    """Raises `KeyError` for a name that this version doesn't know."""
    return {check.name: check for check in ALL_CHECKS}[name]
