"""Runs one check on a class or function in this process, with a harness that is given: for tests of what it decides."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from gradproof_probe.checks.base import Check, CheckContext, CheckResult
from gradproof_probe.harness.recipe import Recipe, Source
from gradproof_probe.importing import Resolved
from gradproof_probe.request import Target

from tests.probe.conftest import FIXTURES

_MARKS = re.compile(r"^(?:class|def) (\w+)|# fault: (\w+)")


def run_check(
    check: Check,
    value: Any,
    inputs: Sequence[str],
    *,
    constructor: str | None = None,
    seconds: float = 60.0,
    seed: int = 0,
    source: Source = "declared",
    **context: Any,
) -> CheckResult:
    """`value`: a module class or a function, whose module's file is the submitted source; `source`: of the harness."""
    module = sys.modules[value.__module__]
    path = Path(str(module.__file__)).resolve()
    kind: Any = "module" if isinstance(value, type) else "function"
    if isinstance(value, type) and issubclass(value, torch.autograd.Function):
        kind = "autograd_function"
    name, line = value.__qualname__, 1
    target = Target(f"{module.__name__}:{name}", kind, path.name, line, "", module.__name__, name)
    recipe = Recipe(source, "A", constructor or (f"{name}()" if kind == "module" else None), tuple(inputs), "test")
    return check.run(
        CheckContext(
            resolved=Resolved(target, module, value),
            recipe=recipe,
            source_root=path.parent,
            device="cpu",
            seed=seed,
            deadline=time.monotonic() + seconds,
            **context,
        )
    )


def marked_faults(fixture: str) -> list[tuple[str, str, int]]:
    """(class or function, cause, line) of every line of the fixture that ends in `# fault: <cause>`."""
    found, current = [], ""
    for number, line in enumerate((FIXTURES / fixture).read_text(encoding="utf-8").splitlines(), 1):
        match = _MARKS.search(line)
        if match is not None and match[1]:
            current = match[1]
        elif match is not None:
            found.append((current, match[2], number))
    return found
