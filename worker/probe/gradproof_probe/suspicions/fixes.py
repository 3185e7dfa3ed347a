"""Does fixed code mend what was shown, and give the same where nothing was wrong? It runs the fixed target.

The process that calls this has imported the fixed source instead of the original; what the original gave at ordinary
inputs, and the input that showed the fault, are in the evidence of the check. This module must not look at the source:
the file on disk is still the faulty one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.harness.recipe import Recipe
from gradproof_probe.importing import Resolved
from gradproof_probe.nan_search.birth import watch
from gradproof_probe.nan_search.constructions import GIVEN, Construction, Edit
from gradproof_probe.nan_search.subject import Subject
from gradproof_probe.suspicions.bench import Bench, Seen, differs
from gradproof_probe.suspicions.ordinary import described, deviation

_LIMIT_S: Final = 30.0
_SEED: Final = 0
# Fixes of these give gradients that the original lacked or had wrong: only what the forward gives must stay.
_CHANGES_GRADIENTS: Final = ("GP2", "GP3", "GP4", "GP7", "GP8")
NOT_TRIED: Final = "not tried: "


def verify(resolved_fixed: Resolved, recipe: Recipe, check_name: str, evidence: Mapping[str, Any]) -> dict[str, Any]:
    """`evidence` is that of the check on the original, with the `fingerprint` that the fix is for."""
    record = _record(evidence)
    if record is None:
        return _answer(NOT_TRIED + "the check says nothing of this finding")
    seed = evidence.get("seed")
    bench = Bench(
        resolved_fixed,
        recipe,
        source_root=_nowhere(resolved_fixed),
        seed=seed if isinstance(seed, int) else _SEED,
        deadline=time.monotonic() + _LIMIT_S,
    )
    rule = str(record.get("rule", ""))
    usual = bench.call()
    if usual.error is not None:
        elsewhere = usual.place is not None and usual.place.line != record.get("line")
        return _answer(f"{NOT_TRIED if elsewhere else ''}with the fix, the {usual.phase} raises: {usual.words}")
    still = _still_there(bench, check_name, record, usual)
    if still:
        return _answer(still)
    ordinary = evidence.get("ordinary")
    if not isinstance(ordinary, Mapping) or not ordinary:
        return _answer("it is clean at the input that showed the fault; the original gives nothing to compare with",
                       verified=True)  # fmt: skip
    other = deviation(ordinary, described(usual), outputs_only=rule.startswith(_CHANGES_GRADIENTS))
    if other:
        return _answer(f"with the fix, {other} is another at ordinary inputs")
    same = "values" if rule.startswith(_CHANGES_GRADIENTS) else "values and gradients"
    return _answer(
        f"it is clean at the input that showed the fault, and {same} at ordinary inputs are the same", verified=True
    )


def _still_there(bench: Bench, check_name: str, record: Mapping[str, Any], usual: Seen) -> str:
    """Why the fault is not shown to be gone; empty if it is."""
    if check_name == "nan_gradient":
        return _not_finite(bench, record)
    numbers = record.get("numbers")
    shown = numbers if isinstance(numbers, Mapping) else {}
    lost = shown.get("without_gradient")
    if isinstance(lost, list) and lost:
        missing = [name for name in lost if name in usual.gradients and name in usual.without_gradient()]
        return f"with the fix, still no gradient reaches {', '.join(missing[:3])}" if missing else ""
    if shown.get("shown_by") == "two steps":
        steps = bench.call(steps=2)
        return f"with the fix, the second step raises: {steps.words}" if steps.error is not None else ""
    if shown.get("shown_by") == "evaluation":
        first, second = (bench.call(training=False, draw=draw, backward=False) for draw in (0, 1))
        return "with the fix, calls in evaluation mode still differ" if differs(first, second) else ""
    if shown.get("shown_by") == "raises":
        return ""  # the fixed code has run, forward and backward
    return NOT_TRIED + "what was shown can't be looked for without the place in the original source"


def _not_finite(bench: Bench, record: Mapping[str, Any]) -> str:
    """Other lines may have faults of their own at that input, with findings and fixes of their own."""
    construction = read_construction(record.get("shown_at"))
    if construction is None:
        return NOT_TRIED + "the input that showed the fault is too long to be kept"
    built = bench.built()
    subject: Subject | None = Subject(built.call, built.instance, seed=bench.seed)
    if subject is not None and record.get("precision") == "float16":
        subject = subject.in_dtype(torch.float16)
    inputs = construction.build(bench.inputs(built))
    watched = None if subject is None or inputs is None else watch(subject, inputs, bench.source_root)
    if watched is None:
        return "with the fix, the call raises at the input that showed the fault"
    births = watched.forward or (watched.backward if watched.evaluation.bad_leaves() else [])
    here = [birth for birth in births if birth.place is None or birth.place.line == record.get("line")]
    if here:
        return f"with the fix, `{here[0].operation}` still gives what is not finite at the input that showed the fault"
    return ""


def read_construction(value: object) -> Construction | None:
    """The construction that the search wrote into its evidence; None if it is none."""
    if not isinstance(value, list):
        return None
    edits = []
    for item in value:
        if not (isinstance(item, list) and len(item) == 3 and isinstance(item[1], str)):
            return None
        edits.append(Edit(item[0], item[1], item[2]))
    return Construction("the input that showed the fault", "plausible", tuple(edits)) if edits else GIVEN


def _record(evidence: Mapping[str, Any]) -> Mapping[str, Any] | None:
    records = evidence.get("hypotheses")
    for record in records if isinstance(records, list) else ():
        if isinstance(record, Mapping) and record.get("fingerprint") == evidence.get("fingerprint"):
            return record
    return None


def _nowhere(resolved: Resolved) -> Path:
    return Path(getattr(resolved.module, "__file__", None) or ".").parent


def _answer(reason: str, *, verified: bool = False) -> dict[str, Any]:
    return {"verified": verified, "reason": reason}
