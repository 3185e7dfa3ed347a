"""A fix is believed only when the fixed code was run: clean where the fault showed, the same elsewhere."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import torch
from gradproof_probe.harness.recipe import Recipe
from gradproof_probe.importing import Resolved
from gradproof_probe.request import Target
from gradproof_probe.suspicions.bench import Bench
from gradproof_probe.suspicions.fixes import NOT_TRIED, verify
from gradproof_probe.suspicions.ordinary import described, deviation, ordinary_values

ROOT = "def f(x):\n    return (x * x).sum(-1).sqrt()\n"
MENDED = "def f(x):\n    return (x * x).sum(-1).add(1e-20).sqrt()\n"
OTHER = "def f(x):\n    return 2.0 * (x * x).sum(-1).add(1e-20).sqrt()\n"
RECIPE = Recipe("declared", "A", None, ("torch.randn(3, 4)",), "test")
ZEROS = [[0, "torch.zeros_like(x)", None]]


def resolved(source: str, directory: Path) -> Resolved:
    file = directory / "layers.py"
    file.write_text(source, encoding="utf-8")
    module = types.ModuleType("layers")
    module.__file__ = str(file)
    exec(compile(source, str(file), "exec"), module.__dict__)
    target = Target("layers:f", "function", "layers.py", 1, "", "layers", "f")
    return Resolved(target, module, module.f)


def evidence(directory: Path, **record: Any) -> dict[str, Any]:
    """What `nan_gradient` says of the faulty code."""
    bench = Bench(resolved(ROOT, directory), RECIPE, directory, 0, float("inf"))
    shown = {"rule": "GP103", "fingerprint": "one", "line": 2, "outcome": "confirmed", "shown_at": ZEROS}
    return {"fingerprint": "one", "seed": 0, "ordinary": ordinary_values(bench), "hypotheses": [shown | record]}


def test_a_fix_that_mends_and_changes_nothing_else_is_verified(tmp_path: Path) -> None:
    said = evidence(tmp_path)
    answer = verify(resolved(MENDED, tmp_path), RECIPE, "nan_gradient", said)
    assert answer["verified"], answer


def test_code_that_is_still_faulty_is_not(tmp_path: Path) -> None:
    said = evidence(tmp_path)
    answer = verify(resolved(ROOT, tmp_path), RECIPE, "nan_gradient", said)
    assert not answer["verified"]
    assert "`sqrt` still gives what is not finite" in answer["reason"]


def test_a_fix_that_gives_other_values_at_ordinary_inputs_is_not(tmp_path: Path) -> None:
    said = evidence(tmp_path)
    answer = verify(resolved(OTHER, tmp_path), RECIPE, "nan_gradient", said)
    assert not answer["verified"]
    assert "output 0 is another" in answer["reason"]


def test_what_can_not_be_tried_is_told_apart_from_what_failed(tmp_path: Path) -> None:
    lost = evidence(tmp_path, shown_at=None)
    assert verify(resolved(MENDED, tmp_path), RECIPE, "nan_gradient", lost)["reason"].startswith(NOT_TRIED)
    foreign = evidence(tmp_path) | {"fingerprint": "another"}
    assert verify(resolved(MENDED, tmp_path), RECIPE, "nan_gradient", foreign)["reason"].startswith(NOT_TRIED)


def test_a_cut_gradient_has_to_arrive(tmp_path: Path) -> None:
    cut = "def f(x):\n    return x.detach() * 2.0\n"
    numbers = {"without_gradient": ["x"]}
    said = evidence(tmp_path, rule="GP202", numbers=numbers) | {"ordinary": {}}
    assert not verify(resolved(cut, tmp_path), RECIPE, "finding_search", said)["verified"]
    whole = "def f(x):\n    return x * 2.0\n"
    assert verify(resolved(whole, tmp_path), RECIPE, "finding_search", said)["verified"]


def test_the_numbers_tell_tensors_apart_that_differ_in_one_element(tmp_path: Path) -> None:
    bench = Bench(resolved(ROOT, tmp_path), RECIPE, tmp_path, 0, float("inf"))
    seen = bench.call()
    before = described(seen)
    seen.outputs = [seen.outputs[0] + torch.tensor([0.0, 1e-2, 0.0])]
    assert deviation(before, described(seen), outputs_only=True) == "output 0"
    assert deviation(before, before, outputs_only=False) == ""
