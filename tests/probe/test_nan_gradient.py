"""The search for NaN gradients, run as the worker runs it: what is born where, at which input, and who is to blame."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gradproof_probe.checks.nan_gradient import NanGradient
from gradproof_probe.nan_search import search
from gradproof_probe.nan_search.domains import sets_of

from tests.fixtures.probe import singular
from tests.probe.checking import run_check
from tests.probe.conftest import FIXTURES, Spoken, entry, speak

SOURCE = (FIXTURES / "singular.py").read_text(encoding="utf-8").splitlines()

ROWS = ("torch.randn(3, 4)",)
PAIR = ("torch.randn(3, 4)", "torch.randn(3, 4)")
MASKED = ("torch.randn(3, 4)", "torch.ones(3, 4, dtype=torch.bool)")
LABELLED = ("torch.randn(3, 4)", "torch.tensor([0, 1, 3])")
SEQUENCES = ("torch.randn(2, 3, 4)", "torch.ones(2, 3, dtype=torch.bool)")

# name: kind, inputs, diagnosis, phase and operation in which it is born
FAULTY: dict[str, tuple[str, tuple[str, ...], str, str, str]] = {
    "lengths": ("function", ROWS, "nan_gradient", "backward", "sqrt"),
    "masked_root": ("function", ("torch.rand(3, 4)",), "nan_gradient", "backward", "sqrt"),
    "hides_the_infinity": ("function", MASKED, "nan_gradient", "backward", "mul"),
    "likelihood": ("function", LABELLED, "nan_output", "forward", "log"),
    "angle": ("function", PAIR, "nan_gradient", "backward", "acos"),
    "sinc": ("function", ROWS, "nan_output", "forward", "div"),
    "Unit": ("module", ROWS, "nan_output", "forward", "div"),
    "PaddedAttention": ("module", SEQUENCES, "nan_output", "forward", "softmax"),
    "OwnRoot": ("autograd_function", ROWS, "nan_gradient", "backward", "div"),
    "rescaled": ("function", ("torch.randn(3, 4).half()",), "nan_output", "forward", "div"),
    "shares": ("function", ("torch.rand(3, 4)",), "nan_output", "forward", "div"),
    # An infinity that relu takes away again is not the one to blame.
    "two_roots": ("function", ROWS, "nan_gradient", "backward", "sqrt"),
    # A docstring that promises the opposite excuses nothing.
    "careful_shares": ("function", ("torch.rand(3, 4)",), "nan_output", "forward", "div"),
}
INNOCENT: dict[str, tuple[str, tuple[str, ...]]] = {
    "safe_lengths": ("function", ROWS),
    "doubly_masked_root": ("function", ROWS),
    "logarithm": ("function", ("torch.rand(3, 4)",)),
    "quotient": ("function", PAIR),
    "growth": ("function", ROWS),
    "loss": ("function", LABELLED),
    "hidden_scores": ("function", MASKED),
    "dice": ("function", ("torch.rand(3, 4)", "torch.rand(3, 4)")),
    "policy_ratio": ("function", ("torch.randn(5)", "torch.randn(5)", "torch.randn(5)")),
    "Attention": ("module", ("torch.randn(2, 3, 4)", "torch.zeros(2, 3, dtype=torch.bool)")),
    "Normed": ("module", ROWS),
    # In float32 an eps of 1e-8 is one.
    "rescaled in float32": ("function", ROWS),
    "tuned": ("function", ROWS),
    # A distribution has no row of zeros.
    "shares of distributions": ("function", ("torch.randn(3, 4).softmax(-1)",)),
    "told_shares": ("function", ("torch.rand(3, 4)",)),
    "warning_shares": ("function", ("torch.rand(3, 4)",)),
}


def fault_line(name: str) -> int:
    return next(number for number, line in enumerate(SOURCE, 1) if line.endswith(f"# FAULT {name}"))


def asked(name: str, *, kind: str, inputs: tuple[str, ...], line: int, singular_set: str = "== 0") -> dict[str, Any]:
    """A job whose target a static finding suspects at a line."""
    suspicion = {
        "rule": "GP101",
        "fingerprint": f"print-{name}",
        "path": "singular.py",
        "line": line,
        "symbol": name,
        "operand": "x",
        "singular_set": singular_set,
    }
    job = entry(kind, f"singular:{name}", inputs=inputs, checks=["nan_gradient"], job=f"asked {name}")
    return job | {"hypotheses": [suspicion]}


@pytest.fixture(scope="module")
def spoken() -> Spoken:
    batch = [
        entry(kind, f"singular:{name}", inputs=inputs, checks=["nan_gradient"])
        for name, (kind, inputs, *_) in FAULTY.items()
    ]
    batch += [
        entry(kind, f"singular:{name.split()[0]}", inputs=inputs, checks=["nan_gradient"], job=name)
        for name, (kind, inputs) in INNOCENT.items()
    ]
    unclear = {"rule": "GP999", "fingerprint": "elsewhere", "path": "singular.py", "line": 1, "singular_set": "== 0"}
    root = asked("doubly_masked_root", kind="function", inputs=ROWS, line=line_of("inside.sqrt()"))
    batch += [
        asked("logarithm", kind="function", inputs=("torch.rand(3, 4)",), line=line_of("return x.log()")),
        root | {"hypotheses": [*root["hypotheses"], unclear]},
        asked("tuned", kind="function", inputs=ROWS, line=fault_line("tuned")),
        asked(
            "rescaled", kind="function", inputs=ROWS, line=fault_line("rescaled"), singular_set="== 0 in float16"
        ),
    ]  # fmt: skip
    return speak(FIXTURES, batch)


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(SOURCE, 1) if text in line)


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_is_named_by_operation_line_and_phase(spoken: Spoken, name: str) -> None:
    _, _, cause, phase, operation = FAULTY[name]
    result = spoken.result(name, "nan_gradient")
    assert result["verdict"] == "fail", result
    assert result["diagnosis"]["cause"] == cause
    birth = result["evidence"]["birth"]
    assert (birth["phase"], birth["operation"]) == (phase, operation)
    assert (result["path"], result["line"]) == ("singular.py", fault_line(name))
    assert result["evidence"]["naturalness"] in ("given", "natural", "plausible")


@pytest.mark.parametrize("name", INNOCENT)
def test_right_code_and_the_callers_business_pass(spoken: Spoken, name: str) -> None:
    result = spoken.result(name, "nan_gradient")
    assert result["verdict"] == "pass", result
    assert result["evidence"]["tried"] > (5 if "softmax" in INNOCENT[name][1][0] else 10)


@pytest.mark.parametrize(("name", "ground"), [("told_shares", "told"), ("warning_shares", "warned")])
def test_what_the_author_says_is_shown_without_blame(spoken: Spoken, name: str, ground: str) -> None:
    shown = spoken.result(name, "nan_gradient")["evidence"]["without_blame"]
    assert ground in {item["ground"] for item in shown}


@pytest.mark.parametrize(
    ("values", "name"),
    [
        (torch.randn(3, 4).softmax(-1), "rows that sum to one"),
        (torch.randn(2, 3, 4).softmax(1), "rows that sum to one"),
        (torch.nn.functional.normalize(torch.randn(3, 4), dim=-1), "unit vectors"),
        (torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0]), "zeros and ones"),
        (torch.rand(3, 4), "values from 0 to 1"),
        (3 * torch.rand(3, 4) + 1, "values of 0 and more"),
        (torch.randn(4, 4) @ torch.eye(4), None),
        (torch.ones(3, 4), None),
        (torch.tensor([0.5, 0.25]), None),
    ],
)
def test_the_set_of_an_argument_is_read_from_values_that_hardly_lie_in_it_by_chance(
    values: torch.Tensor, name: str | None
) -> None:
    found = [one.name for one in sets_of(values)]
    assert found == [] if name is None else found[0] == name
    assert all(one.holds(values.double()) for one in sets_of(values))
    assert not any(one.holds(values.double() - 5) for one in sets_of(values))


def test_a_zero_row_is_natural_and_a_gradient_that_is_not_used_is_explained(spoken: Spoken) -> None:
    lengths = spoken.result("lengths", "nan_gradient")
    assert lengths["evidence"]["naturalness"] == "natural"
    assert lengths["evidence"]["input"] == "`rows`: a first row of zeros"
    assert lengths["evidence"]["gradient_of"] == ["rows"]
    assert "eps inside the root" in lengths["diagnosis"]["text"]
    masked = spoken.result("masked_root", "nan_gradient")
    assert masked["evidence"]["ground"] == "unused"
    assert "0 times infinity" in masked["diagnosis"]["text"]


def test_the_precision_is_the_one_that_the_code_runs_in(spoken: Spoken) -> None:
    assert spoken.result("lengths", "nan_gradient")["evidence"]["precision"] == "float32"
    assert spoken.result("rescaled", "nan_gradient")["evidence"]["precision"] == "float16"


def hypotheses(spoken: Spoken, job: str) -> dict[str, Any]:
    records = spoken.result(job, "nan_gradient")["evidence"]["hypotheses"]
    return {record["fingerprint"]: record for record in records}


def test_a_suspected_operand_is_reached_though_a_caller_could_avoid_it(spoken: Spoken) -> None:
    result = spoken.result("asked logarithm", "nan_gradient")
    assert result["verdict"] == "fail"
    record = hypotheses(spoken, "asked logarithm")["print-logarithm"]
    assert (record["outcome"], record["rule"], record["line"]) == ("confirmed", "GP101", line_of("return x.log()"))


def test_a_suspicion_that_holds_is_searched_and_not_reproduced(spoken: Spoken) -> None:
    assert spoken.result("asked doubly_masked_root", "nan_gradient")["verdict"] == "pass"
    found = hypotheses(spoken, "asked doubly_masked_root")
    assert found["print-doubly_masked_root"]["outcome"] == "not_reproduced"
    assert found["print-doubly_masked_root"]["closest"] > 0
    assert found["elsewhere"]["outcome"] == "not_reached"


def test_a_value_tuned_to_the_last_bit_never_fails(spoken: Spoken) -> None:
    result = spoken.result("asked tuned", "nan_gradient")
    assert result["verdict"] == "inconclusive"
    assert result["evidence"]["naturalness"] == "tuned"
    assert hypotheses(spoken, "asked tuned")["print-tuned"]["outcome"] == "not_reproduced"


def test_half_precision_is_tried_where_a_suspicion_asks_for_it(spoken: Spoken) -> None:
    result = spoken.result("asked rescaled", "nan_gradient")
    assert (result["verdict"], result["evidence"]["precision"]) == ("fail", "float16")
    assert hypotheses(spoken, "asked rescaled")["print-rescaled"]["outcome"] == "confirmed"


def test_a_callable_can_be_searched_without_a_repository() -> None:
    module: dict[str, Any] = runpy.run_path(str(FIXTURES / "singular.py"))
    report = search(module["Unit"](), (torch.randn(3, 4),), module=None, names=("x",))
    worst = report.worst
    assert worst is not None
    assert worst.birth.place is not None
    assert Path("/", worst.birth.place.path) == FIXTURES / "singular.py"
    assert worst.birth.place.line == fault_line("Unit")
    assert search(module["safe_lengths"], (torch.randn(3, 4),)).worst is None


@pytest.mark.parametrize(
    ("fell_back", "suspected", "failing"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_values_that_were_fallen_back_to_are_left_where_there_is_a_suspicion(
    fell_back: bool, suspected: bool, failing: bool
) -> None:
    module: dict[str, Any] = runpy.run_path(str(FIXTURES / "singular.py"))
    suspicion = asked("brighter", kind="function", inputs=(), line=line_of("x.pow(gamma)"), singular_set="< 0")
    report = search(
        module["brighter"],
        (torch.rand(3, 4), 1.3),
        hypotheses=suspicion["hypotheses"] if suspected else (),
        source_root=FIXTURES,
        fell_back=fell_back,
    )
    assert (report.worst is not None) is failing
    assert [item["outcome"] for item in report.hypotheses] == (
        ["confirmed" if failing else "not_reproduced"] if suspected else []
    )


@pytest.mark.parametrize("job", ["lengths", "PaddedAttention", "OwnRoot", "asked rescaled"])
def test_the_script_shows_the_fault_with_torch_and_the_repository_alone(
    spoken: Spoken, job: str, tmp_path: Path
) -> None:
    script = tmp_path / "repro.py"
    script.write_text(spoken.result(job, "nan_gradient")["repro"], encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-I", str(script), str(FIXTURES)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "not finite" in ran.stdout


@pytest.mark.parametrize(("source", "verdict"), [("declared", "fail"), ("mined", "inconclusive")])
def test_a_nan_of_sizes_alone_is_the_fault_of_who_gave_the_sizes(source: Any, verdict: str) -> None:
    result = run_check(NanGradient(), singular.Waves, ["torch.randn(3, 6)"], constructor="Waves(6)", source=source)
    assert result.verdict == verdict, result
    assert result.diagnosis is not None
    assert result.diagnosis.cause == "nan_constant"
    assert result.line is not None
    assert "# NaN at one" in SOURCE[result.line - 1]
    assert "whatever the inputs" in result.summary
    right = run_check(NanGradient(), singular.Waves, ["torch.randn(3, 12)"], constructor="Waves(12)", source=source)
    assert right.verdict == "pass", right
