"""Inputs are demanded by the call itself, not guessed: each call here says in another way what it wants."""

from __future__ import annotations

import ast
import importlib
import math
import sys
import time
from types import ModuleType
from typing import Any

import pytest
import torch
from gradproof_probe.harness.call_search import CallSearch, Found, Search, Start
from gradproof_probe.harness.demand import demands
from gradproof_probe.harness.recipe import make_inputs
from gradproof_probe.importing import Resolved
from gradproof_probe.request import Target

from tests.probe.conftest import FIXTURES


@pytest.fixture(scope="module")
def module() -> ModuleType:
    sys.path.insert(0, str(FIXTURES))
    try:
        return importlib.import_module("demands")
    finally:
        sys.path.remove(str(FIXTURES))


def resolved(module: ModuleType, name: str) -> Resolved:
    value = getattr(module, name)
    kind: Any = "module" if isinstance(value, type) else "function"
    return Resolved(Target(f"demands:{name}", kind, "demands.py", 1, "", "demands", name), module, value)


def search(module: ModuleType, name: str) -> tuple[Found, int]:
    """What was found, and after how many trials."""
    target = resolved(module, name)
    state = Search(target, seed=0, deadline=time.monotonic() + 60)
    instance = target.value() if target.target.kind == "module" else None
    found = CallSearch(state, instance, Start(f"{name}()" if instance is not None else None)).run()
    assert found is not None, state.input_error
    assert found.trial.stage == "ok"
    return found, state.trials


def tensors(module: ModuleType, name: str, found: Found) -> list[Any]:
    args, kwargs = make_inputs(resolved(module, name), found.recipe.inputs, seed=0)
    return [*args, *kwargs.values()]


# The first trial is right: what the source says suffices.
DEMANDED = {
    "Heads": [(None, None, 21)],
    "Residual": [(None, None, 13)],
    "Tokens": [(None, None)],
    "pairs": [(None, None, 3), (None, None, 3)],
    "picked": [(None, None), (None,)],
    "said": [(None, None, 3), (None, None)],
    "of_complex": [None],
}


@pytest.mark.parametrize("name", DEMANDED)
def test_what_the_source_or_its_words_say_runs_at_once(module: ModuleType, name: str) -> None:
    found, trials = search(module, name)
    assert trials == 1, found.recipe
    assert found.recipe.found_by == "source"
    for tensor, expected in zip(tensors(module, name, found), DEMANDED[name], strict=True):
        if expected is not None:
            assert len(tensor.shape) == len(expected)
            assert all(size in (None, actual) for size, actual in zip(expected, tensor.shape, strict=True))


def test_one_symbol_is_one_size_and_two_symbols_are_two(module: ModuleType) -> None:
    points, weights = tensors(module, "said", search(module, "said")[0])
    assert points.shape[:2] == weights.shape
    assert points.shape[0] != points.shape[1]
    first, second = tensors(module, "pairs", search(module, "pairs")[0])
    assert first.shape[0] == second.shape[0]


def test_tokens_of_a_square_are_as_many_as_it_has_places(module: ModuleType) -> None:
    (tokens,) = tensors(module, "SquareTokens", search(module, "SquareTokens")[0])
    assert math.isqrt(tokens.shape[1]) ** 2 == tokens.shape[1]


def test_edges_of_a_graph_name_nodes_that_are_there_and_each_has_its_weight(module: ModuleType) -> None:
    found, _ = search(module, "OnGraph")
    nodes, edges, weights = tensors(module, "OnGraph", found)
    assert found.recipe.inputs[1].startswith("torch.randint(")
    assert edges.shape == (2, len(weights))
    assert nodes.ndim == 2
    assert int(edges.max()) < len(nodes)


def test_indices_stay_inside_what_they_index(module: ModuleType) -> None:
    (tokens,) = tensors(module, "Tokens", search(module, "Tokens")[0])
    assert not tokens.is_floating_point()
    assert "torch.randint(0, 3," in search(module, "Tokens")[0].recipe.inputs[0]
    scores, chosen = tensors(module, "picked", search(module, "picked")[0])
    assert chosen.dtype == torch.int64
    assert len(scores) == len(chosen)


def test_a_complex_argument_is_known_by_its_use(module: ModuleType) -> None:
    (signal,) = tensors(module, "of_complex", search(module, "of_complex")[0])
    assert signal.is_complex()


def test_arguments_that_hold_tensors_are_made_part_by_part(module: ModuleType) -> None:
    ((fine, coarse),) = tensors(module, "TwoPyramids", search(module, "TwoPyramids")[0])
    assert (fine.shape[1], coarse.shape[1]) == (5, 7)
    (batch,) = tensors(module, "ByKey", search(module, "ByKey")[0])
    assert sorted(batch) == ["image", "words"]
    assert batch["image"].shape[-1] == 9
    (data,) = tensors(module, "of_object", search(module, "of_object")[0])
    assert sorted(vars(data)) == ["charges", "positions"]


def test_what_is_only_a_condition_is_a_flag(module: ModuleType) -> None:
    found, trials = search(module, "flagged")
    assert trials == 1
    assert found.recipe.inputs[1] in ("True", "False")


def test_a_number_that_says_which_mode_is_one_of_the_modes(module: ModuleType) -> None:
    found, trials = search(module, "numbered_mode")
    assert trials == 1
    assert found.recipe.inputs[1] == "3"


def test_what_is_walked_backwards_is_a_list(module: ModuleType) -> None:
    (parts,) = tensors(module, "backwards", search(module, "backwards")[0])
    assert isinstance(parts, list | tuple)


def test_embeddings_have_classes_of_several_rows(module: ModuleType) -> None:
    rows, labels = tensors(module, "apart", search(module, "apart")[0])
    assert rows.shape == (len(labels), rows.shape[-1])
    assert not labels.is_floating_point()
    assert min(torch.bincount(labels)) >= 2


def test_what_is_called_is_a_function(module: ModuleType) -> None:
    transform, x = tensors(module, "applied", search(module, "applied")[0])
    assert callable(transform)
    assert isinstance(x, torch.Tensor)


def test_a_guard_in_a_helper_is_solved_for_the_argument(module: ModuleType) -> None:
    (matrix,) = tensors(module, "guarded", search(module, "guarded")[0])
    assert matrix.ndim == 3
    assert matrix.shape[-1] == 11


def test_an_optional_argument_that_is_needed_is_given_by_keyword(module: ModuleType) -> None:
    found, _ = search(module, "optional_needed")
    assert found.recipe.inputs[-1].startswith("scale=")
    assert found.recipe.found_by in ("guards", "repair")


def test_values_outside_the_domain_are_replaced_by_such_inside(module: ModuleType) -> None:
    found, _ = search(module, "only_positive")
    assert found.recipe.found_by == "values"
    assert "torch.rand(" in found.recipe.inputs[0]


def test_a_size_that_is_added_to_is_solved_for(module: ModuleType) -> None:
    (x,) = tensors(module, "Concatenated", search(module, "Concatenated")[0])
    assert x.shape[-1] == 11
    assert tensors(module, "joined", search(module, "joined")[0])[0].shape[-1] == 13


def test_every_input_is_an_expression_that_can_be_pasted(module: ModuleType) -> None:
    for name in (*DEMANDED, "ByKey", "TwoPyramids", "of_object", "applied"):
        for expression in search(module, name)[0].recipe.inputs:
            ast.parse(f"call({expression})", mode="eval")


def test_what_is_inverted_as_an_index_is_a_mask(module: ModuleType) -> None:
    scores, labels, known = tensors(module, "chosen", search(module, "chosen")[0])
    assert known.dtype == torch.bool
    assert scores.shape[:1] == labels.shape[:1] == known.shape
    assert not labels.is_floating_point()


def test_what_is_gone_through_has_two_items(module: ModuleType) -> None:
    groups, weights = tensors(module, "spread", search(module, "spread")[0])
    assert (len(groups), len(weights)) == (2, 2)


def test_a_slice_is_added_for_each_number_of_an_index(module: ModuleType) -> None:
    found, trials = search(module, "gathered_at")
    _, places, amounts = tensors(module, "gathered_at", found)
    assert trials == 1, found.recipe
    assert not places.is_floating_point()
    assert amounts.shape == (*places.shape, 7)


def test_what_is_added_by_index_has_a_number_for_each_of_them(module: ModuleType) -> None:
    found, _ = search(module, "weighted_degrees")
    _, (source, target), weight = tensors(module, "weighted_degrees", found)
    assert weight.shape == target.shape == source.shape


class OfANumber(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(5, 5), torch.nn.Linear(1, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.first(x)
        answer: torch.Tensor = self.second(hidden.sum())
        return answer


def test_what_a_layer_would_refuse_does_not_stop_the_reading() -> None:
    assert demands(OfANumber.forward, OfANumber(), ["x"])["x"].form.axis(-1).known() == 5
