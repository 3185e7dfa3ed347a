"""The gradient check, run as the worker runs it: right code passes, each slip is named and placed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.probe.conftest import CASES, FIXTURES, Spoken, entry, speak


def fault_line(name: str) -> int:
    lines = (FIXTURES / "wrong.py").read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# FAULT {name}"))


@pytest.fixture(scope="module")
def textbook() -> Spoken:
    batch = [
        entry(
            "autograd_function",
            "textbook:Quadratic",
            inputs=["torch.randn(3, 4)", "torch.randn(())", "torch.randn(())"],
        ),
        entry("autograd_function", "textbook:Quadratic", job="guessed"),
        entry("function", "textbook:swish", inputs=["torch.randn(3, 4, dtype=torch.float32)"]),
        entry("function", "textbook:cubic_sine"),
        entry("function", "textbook:attention"),
        entry("module", "textbook:Pair"),
    ]
    return speak(FIXTURES, batch)


@pytest.mark.parametrize("job", ["Quadratic", "guessed", "swish", "cubic_sine", "attention", "Pair"])
def test_textbook_code_passes(textbook: Spoken, job: str) -> None:
    result = textbook.result(job)
    assert result["verdict"] == "pass", result
    assert result["diagnosis"] is None
    assert result["evidence"]["probes"][0]["judgement"] == "agree"


def test_inputs_of_other_shapes_than_the_first_are_found_for_a_function(textbook: Spoken) -> None:
    harness = textbook.harness("guessed")
    assert harness["source"] == "synthesised"
    assert harness["inputs"][1] != harness["inputs"][0]


def test_a_declared_harness_is_grade_a_and_keeps_its_provenance(textbook: Spoken) -> None:
    harness = textbook.harness("swish")
    assert (harness["source"], harness["grade"], harness["provenance"]) == ("declared", "A", "pyproject.toml:1")


def test_parameters_and_every_input_are_differentiated(textbook: Spoken) -> None:
    assert textbook.result("Pair")["evidence"]["variables"] == 6


INNOCENT = {
    "StraightThroughRound": ("autograd_function", "inconclusive", "straight_through"),
    "ReverseGradient": ("autograd_function", "inconclusive", "gradient_transform"),
    "Domain": ("module", "inconclusive", "gradient_transform"),
    "Quantised": ("module", "inconclusive", None),
    "DetachedScale": ("module", "inconclusive", "stop_gradient"),
    "Dropped": ("module", "pass", None),
    "Normed": ("module", "pass", None),
    "Counted": ("module", "pass", None),
    "CachesAConstant": ("module", "pass", None),
    "clamped": ("function", "pass", None),
    "largest": ("function", "pass", None),
    "coarse": ("function", "pass", None),
    "writes_to_its_input": ("function", "pass", None),
    "saturating_loss": ("function", "pass", None),
}


@pytest.fixture(scope="module")
def innocent() -> Spoken:
    batch = [entry(kind, f"innocent:{name}") for name, (kind, _, _) in INNOCENT.items()]
    batch.append(entry("function", "innocent:at_the_corner", inputs=["torch.zeros(3, 4)"]))
    batch.append(entry("function", "innocent:largest", inputs=["torch.ones(3, 4)"], job="ties"))
    return speak(FIXTURES, batch)


@pytest.mark.parametrize("name", INNOCENT)
def test_what_is_meant_is_not_called_a_fault(innocent: Spoken, name: str) -> None:
    _, verdict, cause = INNOCENT[name]
    result = innocent.result(name)
    assert result["verdict"] == verdict, result
    if cause is not None:
        assert result["diagnosis"]["cause"] == cause


@pytest.mark.parametrize("job", ["at_the_corner", "ties"])
def test_a_corner_at_the_given_point_is_not_called_a_fault(innocent: Spoken, job: str) -> None:
    assert innocent.result(job)["verdict"] in ("pass", "inconclusive")


def test_a_cut_gradient_is_explained_by_its_line(innocent: Spoken) -> None:
    source = (FIXTURES / "innocent.py").read_text(encoding="utf-8").splitlines()
    result = innocent.result("DetachedScale")
    assert "detach" in source[result["line"] - 1]


WRONG = {
    "Scaled": "scaled_gradient",
    "Signed": "wrong_sign",
    "MissingTerm": "missing_term",
    "Swapped": "swapped_gradients",
    "Zeroed": "missing_gradient",
    "TooFew": "backward_raises",
    "WritesSaved": "saved_tensor_mutated",
    "MisreadsStrides": "grad_output_layout",
    "Unmasked": "gradient_where_constant",
    "Block": "scaled_gradient",
    "Overwritten": "backward_raises",
    "Decorated": "scaled_gradient",
    "OverwrittenAfterInit": "backward_raises",
    "WrongInEvalMode": "scaled_gradient",
}


@pytest.fixture(scope="module")
def wrong() -> Spoken:
    modules = ("Block", "Overwritten", "OverwrittenAfterInit", "Masked", "WrongInEvalMode", "DropsOut")
    names = (*WRONG, "Masked", "DropsOut")
    return speak(
        FIXTURES, [entry("module" if name in modules else "autograd_function", f"wrong:{name}") for name in names]
    )


def test_a_module_that_computes_something_else_in_eval_mode_is_examined_in_it_too(wrong: Spoken) -> None:
    assert wrong.result("WrongInEvalMode")["summary"].startswith("in eval mode, unlike in train mode")
    right = wrong.result("DropsOut")
    assert right["verdict"] == "pass"
    assert right["evidence"]["modes"] == ["train", "eval: pass"]


@pytest.mark.parametrize("name", WRONG)
def test_each_slip_fails_with_its_cause_at_its_line(wrong: Spoken, name: str) -> None:
    result = wrong.result(name)
    assert result["verdict"] == "fail", result
    assert result["diagnosis"]["cause"] == WRONG[name], result["summary"]
    assert (result["path"], result["line"]) == ("wrong.py", fault_line("Scaled" if name == "Block" else name))


def test_a_nan_gradient_under_finite_outputs_is_called_that(wrong: Spoken) -> None:
    result = wrong.result("Masked")
    assert (result["verdict"], result["diagnosis"]["cause"]) == ("fail", "nan_gradient"), result["summary"]


def test_the_ratio_is_given_with_the_diagnosis(wrong: Spoken) -> None:
    assert wrong.result("Scaled")["diagnosis"]["numbers"]["ratio"] == pytest.approx(0.5)


def test_the_function_that_a_module_fails_for_is_named(wrong: Spoken) -> None:
    assert wrong.result("Block")["evidence"]["function"] == "Scaled"


@pytest.mark.parametrize("name", WRONG)
def test_the_repro_shows_the_failure_without_gradproof(wrong: Spoken, name: str, tmp_path: Path) -> None:
    script = tmp_path / "repro.py"
    script.write_text(wrong.result(name)["repro"], encoding="utf-8")
    assert "gradproof" not in script.read_text(encoding="utf-8")
    shown = subprocess.run(
        [sys.executable, "-I", str(script), str(FIXTURES)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert shown.returncode == 1, shown.stderr
    assert "expected:" in shown.stdout
    assert "got:" in shown.stdout


PUBLIC_REPORTS: dict[str, tuple[str, str, str, str]] = {
    "case_038": ("autograd_function", "ISRLUFn", "ignores_grad_output", "return slope ** 3, None"),
    "case_048": ("autograd_function", "AdderFn", "backward_raises", "def backward(ctx, grad):"),
    "case_051": ("module", "BiasHeads", "backward_raises", "rows = grad.view(b, h, -1)"),
    "case_054": ("module", "ResidualAttn", "grad_output_mutated", "grad.sub_(dot).mul_(y)"),
    "case_055": ("module", "SharedTrunk", "grad_output_mutated", "grad *= ctx.factor"),
    "case_056": ("autograd_function", "GatedProduct", "saved_tensor_mutated", "up.copy_(grad * gate)"),
    "case_058": ("module", "BatchGain", "scaled_gradient", "per_sample = grad * x"),
    "case_060": ("module", "SpikeLayer", "forward_raises", "ctx.save_for_backward(input)"),
    "case_061": ("module", "Leaky", "backward_raises", "return grad / (1.0 + (math.pi * mem).square())"),
    "case_067": ("module", "KeyRegion", "backward_raises", "att[:, :, 0, :] = 0"),
    "case_070": ("module", "DetectHead", "constructor_raises", "bias[:, 4] -= math.log(100.0 * stride)"),
    "case_073": ("module", "CornerGain", "backward_raises", "x[:, :, 0, 0] = x[:, :, 0, 0] * g"),
    "case_074": ("module", "MishInplace", "backward_raises", "h = h.mul_(F.softplus(h).tanh())"),
    "case_077": ("module", "EvolvingConv", "graph_kept_between_steps", "self.evolved = self.cell(current, current)"),
    "case_078": ("module", "WaveRNN", "graph_kept_between_steps", "self.memory = state"),
    "case_084": ("module", "QuantLinear", "forward_raises", "out += self.bias"),
}


@pytest.fixture(scope="module")
def reports() -> Spoken:
    batch: list[dict[str, Any]] = []
    for case, (kind, name, _, _) in PUBLIC_REPORTS.items():
        batch.append(entry(kind, f"{case}:{name}", job=case))
        batch.append(entry(kind, f"{case}_fixed:{name}", job=f"{case}_fixed"))
    return speak(CASES, batch)


@pytest.mark.parametrize("case", PUBLIC_REPORTS)
def test_the_fault_of_a_public_report_is_found_where_it_is(reports: Spoken, case: str) -> None:
    _, _, cause, text = PUBLIC_REPORTS[case]
    result = reports.result(case)
    assert (result["verdict"], (result["diagnosis"] or {}).get("cause")) == ("fail", cause), result["summary"]
    lines = (CASES / f"{case}.py").read_text(encoding="utf-8").splitlines()
    assert lines[result["line"] - 1].strip() == text


@pytest.mark.parametrize("case", PUBLIC_REPORTS)
def test_the_repaired_code_of_a_public_report_does_not_fail(reports: Spoken, case: str) -> None:
    assert reports.result(f"{case}_fixed")["verdict"] in ("pass", "inconclusive")
