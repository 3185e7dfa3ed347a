"""Rebuilds recorded calls from their text and runs each once, so that what is said to run does run.

In a process that has run no example, with a child for each target.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gradproof_probe.harness.recipe import ExpressionError, Recipe, build
from gradproof_probe.harness.trial import TrialTimeoutError, attempt, time_limit
from gradproof_probe.importing import NotRunnableError, Resolved, import_target
from gradproof_probe.mining.digging import Ground
from gradproof_probe.mining.running import import_first
from gradproof_probe.processes import LineWriter, watch
from gradproof_probe.request import Target

TRIAL_S: Final = 4.0
LEAST_S: Final = 2.0  # for a target, and at least three times its share of what is left: most take much less
# Calls that run without a gradient, or with one that isn't finite, are worth knowing, after all those with one.
WORSE: Final = ("no_gradient", "not_finite", "backward")

Calls = Sequence[dict[str, Any]]
Form = tuple[str | None, tuple[str, ...]]


def try_targets(
    ground: Ground,
    calls: Mapping[str, Calls],
    limit: int,
    deadline: float,
    writer: LineWriter,
    *,
    preload: bool,
) -> None:
    """Say `mined` for each recipe that ran, at most `limit` for a target, and `tried` when a target is done."""
    ground.prepare()
    if preload:
        import_first(ground.packages())
    for done, (name, recorded) in enumerate(calls.items()):
        now = time.monotonic()
        if now > deadline:
            return
        until = min(deadline, now + LEAST_S + 3 * (deadline - now) / (len(calls) - done))
        _try_target(ground, name, recorded, limit, until, writer)
        writer.write({"type": "tried", "target": name})


def _try_target(ground: Ground, name: str, recorded: Calls, limit: int, until: float, writer: LineWriter) -> None:
    def work(child: LineWriter) -> None:
        with contextlib.suppress(NotRunnableError):
            resolved = import_target(ground.source_root, _target(ground, name, str(recorded[0]["kind"])))
            for recipe in try_calls(resolved, recorded, limit=limit, until=until):
                child.write({"type": "mined", "target": name, "recipe": recipe.to_wire()})

    def hear(line: bytes) -> None:
        with contextlib.suppress(ValueError, RecursionError):
            message = json.loads(line)
            if isinstance(message, dict) and message.get("type") == "mined" and message.get("target") == name:
                writer.write(message)

    watch(work, deadline=lambda: until + 1.0, on_line=hear)


def _target(ground: Ground, name: str, kind: str) -> Target:
    module, _, qualname = name.partition(":")
    root = ground.roots.get(module, "")
    path = f"{root}/{module.replace('.', '/')}.py".lstrip("/")
    return Target(name, kind, path, 1, root, module, qualname)  # type: ignore[arg-type]


def try_calls(resolved: Resolved, calls: Calls, *, limit: int, until: float) -> Iterator[Recipe]:
    """Recipes of the calls that run, those with a finite gradient first, otherwise in the order given."""
    later: list[Recipe] = []
    seen: set[Form] = set()
    count = 0
    for call in calls:
        if count >= limit or time.monotonic() > until:
            break
        for form in _forms(call):
            if form in seen:
                break
            constructor, inputs = form
            recipe = Recipe("mined", "A", constructor, inputs, str(call["place"]), found_by=str(call["found_by"]))
            stage = _stage(resolved, recipe)
            if stage is None:
                continue
            seen.add(form)
            if stage in WORSE:
                later.append(recipe)
            else:
                count += 1
                yield recipe
            break
    yield from later[: max(0, limit - count)]


def _forms(call: Mapping[str, Any]) -> Iterator[Form]:
    for constructor, inputs in call["forms"][:4]:
        yield (None if constructor is None else str(constructor)), tuple(map(str, inputs))


def _stage(resolved: Resolved, recipe: Recipe) -> str | None:
    """How far the recipe came, None if it can't be called."""
    try:
        with time_limit(TRIAL_S):
            built = build(resolved, recipe, seed=0)
    except (ExpressionError, TrialTimeoutError):
        return None
    stage = attempt(built, seed=0, seconds=TRIAL_S).stage
    return None if stage in ("forward", "too_slow") else stage
