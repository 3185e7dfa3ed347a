"""The graph of a call as boxes: what it reads, who made it, at which line, what it keeps; and never more than 100."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gradproof_probe.checks.base import CheckResult
from gradproof_probe.checks.portrait import Portrait
from gradproof_probe.lines import EVIDENCE, clean_result
from gradproof_probe.portraits.plan import MOST_BOXES
from torch import nn

from tests.fixtures.probe import portrayed
from tests.probe.checking import run_check
from tests.probe.conftest import FIXTURES

X = ("torch.randn(2, 4)",)
WIDE = ("torch.randn(2, 8)",)


def portray(value: Any, inputs: tuple[str, ...] = X, constructor: str | None = None) -> CheckResult:
    result = run_check(Portrait(), value, inputs, constructor=constructor)
    assert result.verdict == "pass", result.summary
    return result


def boxes(result: CheckResult) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = result.evidence["graph"]["nodes"]
    return found


def box(result: CheckResult, label: str) -> dict[str, Any]:
    (found,) = [item for item in boxes(result) if item["label"] == label]
    return found


def line_of(comment: str) -> int:
    lines = (FIXTURES / "portrayed.py").read_text(encoding="utf-8").splitlines()
    return next(number for number, text in enumerate(lines, start=1) if text.endswith(f"# {comment}"))


def test_a_diamond_is_drawn_whole_with_the_line_of_each_operation() -> None:
    result = portray(portrayed.diamond, ("torch.randn(3)", "torch.randn(3)"))
    labels = [item["label"] for item in boxes(result)]
    assert labels == ["x", "weight", "exp", "sin", "mul", "add", "output"]
    read = {item["label"]: {labels[source] for source in item["from"]} for item in boxes(result)}
    assert read["exp"] == read["sin"] == {"x"}
    assert read["mul"] == {"sin", "weight"}
    assert read["add"] == {"exp", "mul"}
    assert read["output"] == {"add"}
    assert result.evidence["graph"]["files"] == ["portrayed.py"]
    assert box(result, "add")["lines"] == [[0, line_of("joins"), line_of("joins")]]
    assert box(result, "exp")["shape"] == [3]


def test_parameters_without_gradient_are_marked_at_their_module_or_in_a_box_of_their_own() -> None:
    result = portray(portrayed.Small)
    marked = {item["label"]: item["lost"] for item in boxes(result) if "lost" in item}
    assert marked.pop("never") == {"none": ["never.weight", "never.bias"]}
    assert marked == {"Small": {"none": ["unused"], "zero": ["silent"]}}
    assert "4 parameters without gradient" in result.summary
    assert not any("lost" in item for item in boxes(portray(portrayed.Block, WIDE)))


def test_a_custom_function_has_the_line_of_its_call_and_those_of_its_methods() -> None:
    found = box(portray(portrayed.Small), "Doubled")
    lines = (FIXTURES / "portrayed.py").read_text(encoding="utf-8").splitlines()
    wanted = {line_of("custom"), *(number for number, text in enumerate(lines, 1) if "2 * gradient" in text)}
    assert all(any(first <= line <= last for _, first, last in found["lines"]) for line in wanted)


def test_a_large_model_is_collapsed_by_module_and_one_block_shows_what_the_others_are_like() -> None:
    result = portray(portrayed.Deep, WIDE)
    shown = boxes(result)
    assert len(shown) <= MOST_BOXES
    closed = [item["label"] for item in shown if item["kind"] == "module"]
    assert closed[-1] == "blocks.29"
    assert "blocks.0" not in closed
    assert any(item.get("about", "").startswith("blocks.0") for item in shown)
    assert box(result, "blocks.29")["operations"] == 7
    assert box(result, "blocks.29")["about"] == "Block"
    assert box(result, "spare")["lost"]["none"] == ["spare.weight", "spare.bias"]


def test_a_transformer_stays_within_a_hundred_boxes() -> None:
    layer = portray(nn.TransformerEncoderLayer, ("torch.randn(2, 5, 16)",), "TransformerEncoderLayer(16, 2, 32)")
    assert 20 < len(boxes(layer)) <= MOST_BOXES
    assert layer.evidence["graph"]["whole"]
    many = portray(
        nn.TransformerEncoder,
        ("torch.randn(2, 5, 16)",),
        "TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32), 4)",
    )
    assert len(boxes(many)) <= MOST_BOXES
    assert not many.evidence["graph"]["whole"]


@pytest.mark.parametrize("value", [portrayed.many_steps, portrayed.everything_reads_everything])
def test_a_long_run_without_modules_becomes_stretches_of_lines(value: Any) -> None:
    result = portray(value, ("torch.randn(3)",))
    shown = boxes(result)
    assert len(shown) <= MOST_BOXES
    assert (
        sum(item.get("operations", 1) for item in shown if item["kind"] not in {"input", "output"})
        == (result.evidence["graph"]["operations"])
    )
    assert all(source < number for number, item in enumerate(shown) for source in item["from"])


def test_bytes_count_once_and_not_for_what_is_there_anyway() -> None:
    result = portray(portrayed.Kept, ("torch.randn(1000)",))
    assert result.evidence["profile"]["saved_bytes"] == 4000  # the exponential keeps its result; x and weight are there
    (kept,) = result.evidence["profile"]["operations"]
    assert (kept["name"], kept["path"], kept["line"]) == ("exp", "portrayed.py", line_of("keeps"))
    assert (kept["saved_bytes"], kept["count"]) == (4000, 1)


def test_times_of_modules_add_up_and_the_ten_costliest_are_told() -> None:
    costs = portray(portrayed.Deep, WIDE).evidence["profile"]
    assert len(costs["modules"]) == 10
    assert costs["modules_in_all"] == 1 + 30 * 4
    own = [item["own_forward_ms"] + item["own_backward_ms"] for item in costs["modules"]]
    # Each time is rounded to 1e-4 ms; they were ordered before.
    assert own == pytest.approx(sorted(own, reverse=True), abs=2e-4)
    assert min(own) > 0
    small = portray(portrayed.Block, WIDE).evidence["profile"]["modules"]
    whole = next(item for item in small if item["name"] == "")
    assert whole["forward_ms"] == pytest.approx(sum(item["own_forward_ms"] for item in small), abs=1e-3)
    assert whole["backward_ms"] == pytest.approx(sum(item["own_backward_ms"] for item in small), abs=1e-3)
    assert whole["saved_bytes"] == sum(item["own_saved_bytes"] for item in small)


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_is_recomputed_keeps_nothing_of_its_inside(reentrant: bool) -> None:
    plain = portray(portrayed.Block, WIDE).evidence["profile"]
    less = portray(portrayed.Recomputed, WIDE, f"Recomputed({reentrant})").evidence["profile"]
    assert less["saved_bytes"] < plain["saved_bytes"]
    assert less["backward_ms"] > 0


def test_a_backward_that_raises_leaves_a_picture_and_says_so() -> None:
    result = portray(portrayed.FailsBackward, ("torch.randn(3)",))
    assert "inplace operation" in result.evidence["backward"]
    assert [item["label"] for item in boxes(result)] == ["x", "mul", "exp", "add", "output"]


def test_code_that_refuses_hooks_is_drawn_without_its_bytes() -> None:
    result = portray(portrayed.Solved, ("torch.randn(3)",))
    assert result.evidence["profile"]["saved_bytes"] == 0
    assert [item["label"] for item in boxes(result)] == ["x", "mul", "mul", "output"]


def test_what_has_no_graph_is_skipped_and_what_raises_is_an_error() -> None:
    assert run_check(Portrait(), portrayed.integers, ("torch.randn(3)",)).verdict == "skipped"
    raised = run_check(Portrait(), portrayed.raises, ("torch.randn(3)",))
    assert (raised.verdict, raised.summary) == ("error", "the forward raises ValueError: no")


def test_evidence_stays_within_what_a_line_may_carry_and_names_are_kept_as_they_are() -> None:
    results = [
        portray(portrayed.Odd, ("torch.randn(2, 3)",)),
        portray(portrayed.Deep, WIDE, "Deep(120)"),
        portray(portrayed.everything_reads_everything, ("torch.randn(3)",)),
    ]
    for result in results:
        line = clean_result(result.to_wire("portrait", 0.1), ["portrait"])
        assert line is not None
        assert json.loads(json.dumps(result.evidence)) == line["evidence"]
        assert len(json.dumps(line["evidence"])) < EVIDENCE
    modules = results[0].evidence["profile"]["modules"]
    assert "<script>\u202e" in {item["class"] for item in modules}


def test_nothing_stays_behind_that_the_recording_put_in_place() -> None:
    portray(portrayed.Small)
    base: Any = portrayed.Doubled.__mro__[2]
    assert "apply" not in vars(base)
    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_pre_hooks
