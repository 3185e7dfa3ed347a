"""Differences that are no fault get their label with the line and the reason; faults beside them stay faults."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradproof_probe.gradients.functions import documented, speaks_of_design

from tests.probe.conftest import FIXTURES, Spoken, entry, speak

# name: (kind, label, whether the source says that it is meant)
LABELS = {
    "Distilled": ("module", "stop_gradient", True),
    "Rounded": ("module", "straight_through", True),
    "ScaledByItsLargest": ("module", "stop_gradient", True),
    "ReadsANumber": ("module", "stop_gradient", False),
    "NormalisesItsWeight": ("module", "written_in_forward", True),
    "remembers": ("function", "remembered_result", True),
    "Reversible": ("module", "gradient_by_side_effect", True),
    "spectrum": ("function", "structured_input", True),
    "Softened": ("module", "gradient_hook", True),
    "mislaid": ("function", "stop_gradient", False),
    "squared": ("function", "seen_once", False),
}
PASSES = ("probability", "linear_in_float32")
FAULTS = ("cubed", "WrongBesideACut")
INPUTS = {
    "spectrum": "torch.randn(4, 4, dtype=torch.float64)",
    "probability": "torch.tensor([[0.001, 0.5, 0.9999], [1.0, 0.2, 0.7]])",
}


def line_of(name: str) -> int | None:
    lines = (FIXTURES / "meant.py").read_text(encoding="utf-8").splitlines()
    return next((number for number, line in enumerate(lines, 1) if line.endswith(f"# LINE {name}")), None)


@pytest.fixture(scope="module")
def said() -> Spoken:
    kinds = {name: kind for name, (kind, _, _) in LABELS.items()}
    kinds |= dict.fromkeys((*PASSES, "cubed"), "function") | {"WrongBesideACut": "module"}
    batch = [
        entry(kind, f"meant:{name}", inputs=[INPUTS.get(name, "torch.randn(3, 4)")]) for name, kind in kinds.items()
    ]
    batch.append(entry("function", "meant:entropy"))
    batch.append(entry("function", "meant:entropy", inputs=["-torch.ones(3)"], job="declared"))
    batch += [entry("autograd_function", f"meant:{name}") for name in ("_OfCentredRows", "_WrongForAll")]
    batch += [
        entry("function", f"meant:{name}", inputs=["torch.randn(3, 4)", "torch.randn(3, 4)"])
        for name in ("weighted_by_counts", "overwritten")
    ]
    batch += [
        entry("autograd_function", f"meant:{name}", inputs=["torch.randn(4, 6)"])
        for name in ("LeadingVectors", "HalfLeadingVectors")
    ]
    return speak(FIXTURES, batch)


@pytest.mark.parametrize("name", LABELS)
def test_a_difference_that_is_no_fault_is_labelled_with_what_made_us_think_so(said: Spoken, name: str) -> None:
    _, label, meant = LABELS[name]
    result = said.result(name)
    assert (result["verdict"], result["diagnosis"]["cause"]) == ("inconclusive", label), result["summary"]
    told = result["evidence"]["by_design"]
    assert (told["label"], told["meant"]) == (label, meant), told
    assert told["because"]
    if line_of(name) is not None:
        assert (result["path"], result["line"]) == ("meant.py", line_of(name))


@pytest.mark.parametrize("name", PASSES)
def test_values_near_a_border_and_casts_inside_are_no_obstacle(said: Spoken, name: str) -> None:
    assert said.result(name)["verdict"] == "pass", said.result(name)["summary"]


def test_a_cast_to_a_narrower_type_is_named_with_its_line(said: Spoken) -> None:
    assert f"meant.py:{line_of('linear_in_float32')}" in said.result("linear_in_float32")["evidence"]["computes_in"]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_beside_what_is_meant_stays_a_fault(said: Spoken, name: str) -> None:
    result = said.result(name)
    assert result["verdict"] == "fail", result["summary"]
    assert "by_design" not in result["evidence"]
    if line_of(name) is not None:
        assert result["line"] == line_of(name)


def test_a_function_that_is_right_through_its_public_callers_is_not_called_wrong(said: Spoken) -> None:
    result = said.result("_OfCentredRows")
    assert (result["verdict"], result["diagnosis"]["cause"]) == ("inconclusive", "passes_through_callers"), result
    assert "meant:deviations" in result["summary"]


def test_a_function_that_is_wrong_through_its_public_callers_stays_wrong(said: Spoken) -> None:
    result = said.result("_WrongForAll")
    assert (result["verdict"], result["line"]) == ("fail", line_of("_WrongForAll"))


def test_a_basis_is_right_if_the_space_that_it_spans_is(said: Spoken) -> None:
    result = said.result("LeadingVectors")
    assert (result["verdict"], result["diagnosis"]["cause"]) == ("inconclusive", "choice_of_basis"), result
    assert said.result("HalfLeadingVectors")["verdict"] == "fail"


def test_a_backward_that_raises_only_because_labels_require_grad_is_no_fault(said: Spoken) -> None:
    result = said.result("weighted_by_counts")
    assert result["verdict"] == "pass", result["summary"]
    assert result["evidence"]["held_constant"] == ["target"]
    assert "modified by an inplace operation" in result["evidence"]["raises_with_labels"]
    assert said.result("overwritten")["verdict"] == "fail"


def test_where_made_up_inputs_give_no_number_others_are_taken_and_given_ones_are_kept(said: Spoken) -> None:
    assert said.result("entropy")["verdict"] == "pass", said.result("entropy")["summary"]
    declared = said.result("declared")
    assert (declared["verdict"], declared["diagnosis"]["cause"]) == ("inconclusive", "not_finite")


class TensorQuantFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        """Passes it straight through."""
        return grad_outputs


class Aligned(torch.autograd.Function):
    """Says nothing."""


def test_a_function_is_known_by_the_words_of_its_name_and_by_what_its_methods_say() -> None:
    assert speaks_of_design(TensorQuantFunction) == "Quant"
    assert documented(TensorQuantFunction) == ["Tensor_Quant_Function", "Passes it straight through."]
    assert documented(Aligned) == ["Aligned", "Says nothing."], "what torch says of its own base is nobody's word"
