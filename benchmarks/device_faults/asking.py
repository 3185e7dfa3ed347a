"""A model of this benchmark as a check is asked about it."""

from __future__ import annotations

import time
from pathlib import Path

from gradproof_probe.checks.base import CheckContext
from gradproof_probe.harness.recipe import Recipe
from gradproof_probe.importing import Resolved
from gradproof_probe.request import Target

from benchmarks.device_faults import models

SECONDS = 120.0


def context_of(kind: type, inputs: str, device: str) -> CheckContext:
    """`inputs`: the expression of its only argument. A check has `SECONDS` from now on."""
    target = Target(f"models:{kind.__name__}", "module", "__init__.py", 1, "", "models", kind.__name__)
    return CheckContext(
        resolved=Resolved(target, models, kind),
        recipe=Recipe("declared", "A", f"{kind.__name__}()", (inputs,), "benchmark"),
        source_root=Path(models.__file__).parent,
        device=device,
        seed=0,
        deadline=time.monotonic() + SECONDS,
    )
