"""What the public entry points that use a custom Function say of it.

A Function may have a contract that only its callers keep: an argument that is normalised first, a gradient that is
right for everything that doesn't depend on the choice of a basis. Called by itself with inputs that somebody made up,
it fails; whoever uses the package never sees that. So before such a fault is reported, public functions of the package
that lead to it are called, and if autograd agrees with differences through each, the Function is not to blame.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

import torch

from gradproof_probe.gradients.attribution import relative
from gradproof_probe.gradients.examination import Examination, Examiner
from gradproof_probe.gradients.experiment import Experiment, ForwardError
from gradproof_probe.gradients.functions import Recorder
from gradproof_probe.gradients.labels import Label
from gradproof_probe.harness.recipe import ExpressionError, build, default_dtype
from gradproof_probe.importing import NotRunnableError, Resolved
from gradproof_probe.request import Target

MOST: Final = 4  # entry points that are called
DEPTH: Final = 4  # calls between an entry point and the Function
SEARCH_S: Final = 4.0  # for the inputs of one entry point

FindInputs = Callable[[Resolved, float], Any]


def passes_through_callers(
    function: type, found: Examination, *, source_root: Path, seed: int, deadline: float, find_inputs: FindInputs
) -> Label | None:
    """A label if every public entry point that could be run passes and goes through the Function; None otherwise.

    `find_inputs`: a recipe for a target within so many seconds; raises `NotRunnableError`.
    """
    passed: list[str] = []
    for resolved in entry_points(function, source_root):
        if len(passed) >= MOST or time.monotonic() > deadline:
            break
        try:
            recipe = find_inputs(resolved, SEARCH_S)
            examined = _examined(resolved, recipe, function, (source_root, seed, deadline))
        except (NotRunnableError, ExpressionError, ForwardError, RuntimeError):
            continue
        if examined is None:
            continue
        if examined.verdict == "fail":
            return None
        if examined.verdict == "pass":
            passed.append(resolved.target.name)
    if not passed:
        return None
    names = ", ".join(passed)
    return Label(
        "passes_through_callers",
        f"called by itself, {found.text}; but it passes through its public callers: {names}",
        ("nobody said which inputs the Function takes", f"autograd agrees with differences through {names}"),
        meant=False,
    )


def entry_points(function: type, source_root: Path) -> list[Resolved]:
    """Public functions of the loaded package that lead to the Function, the nearest first."""
    everything = list(_functions(source_root))
    reached = {function.__name__}
    found: list[Resolved] = []
    seen: set[int] = set()
    for _ in range(DEPTH):
        names: set[str] = set()
        for module, value in everything:
            if id(value) in seen or not reached & set(_names(value.__code__)):
                continue
            seen.add(id(value))
            names.add(value.__name__)
            if not value.__name__.startswith("_"):
                found.append(_resolved(module, value, source_root))
        if not names:
            break
        reached = names
    return found[: 3 * MOST]


def _functions(source_root: Path) -> Iterator[tuple[ModuleType, Any]]:
    for module in list(sys.modules.values()):
        filename = getattr(module, "__file__", None)
        if not filename or relative(filename, source_root) is None:
            continue
        for value in list(vars(module).values()):
            if inspect.isfunction(value) and value.__module__ == module.__name__:
                yield module, value


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _resolved(module: ModuleType, value: Any, source_root: Path) -> Resolved:
    target = Target(
        name=f"{module.__name__}:{value.__qualname__}",
        kind="function",
        path=relative(value.__code__.co_filename, source_root) or "",
        line=value.__code__.co_firstlineno,
        import_root="",
        module=module.__name__,
        qualname=value.__qualname__,
    )
    return Resolved(target, module, value)


def _examined(resolved: Resolved, recipe: Any, function: type, given: tuple[Path, int, float]) -> Examination | None:
    """None if its call doesn't go through the Function."""
    source_root, seed, deadline = given

    def make(precision: torch.dtype | None) -> Experiment:
        with default_dtype(precision or torch.get_default_dtype()):
            built = build(resolved, recipe, seed=seed)
        return Experiment(built.call, built.args, built.kwargs, None, seed=seed, precision=precision)

    recorder = Recorder(source_root)
    with default_dtype(torch.float64), recorder.watching([function]):
        make(torch.float64).run()
    if not recorder.calls:
        return None
    return Examiner(make, source_root=source_root, seed=seed, deadline=deadline).examine()
