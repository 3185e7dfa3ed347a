"""Sizes that nothing names are found by trials that tell each other, and other facts that only an error tells."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest
import torch
from gradproof_probe.harness.docstrings import axes_in
from gradproof_probe.harness.fixed_sizes import next_side

from tests.probe.conftest import FIXTURES
from tests.probe.test_inputs import search, tensors


@pytest.fixture(scope="module")
def module() -> ModuleType:
    sys.path.insert(0, str(FIXTURES))
    try:
        return importlib.import_module("fixed_sizes")
    finally:
        sys.path.remove(str(FIXTURES))


@pytest.mark.parametrize(
    ("name", "channels", "sides"),
    [("Digits", 1, range(28, 30)), ("Viewed", 3, range(30, 32)), ("Strided", 4, range(84, 88))],
)
def test_an_image_is_made_as_large_as_its_last_layer_wants(
    module: ModuleType, name: str, channels: int, sides: range
) -> None:
    found, trials = search(module, name)
    (image,) = tensors(module, name, found)
    assert image.shape[:2] == (2, channels)
    assert image.shape[2] == image.shape[3]
    assert image.shape[2] in sides
    assert trials < 12, found.recipe


def test_a_signal_is_made_as_long_as_its_last_layer_wants(module: ModuleType) -> None:
    (signal,) = tensors(module, "Waves", search(module, "Waves")[0])
    assert signal.shape[:2] == (2, 1)
    assert (signal.shape[-1] - 80) // 16 + 1 in range(124, 128)


def test_what_does_not_depend_on_the_side_is_not_searched_further() -> None:
    assert next_side({8.0: 64, 30.0: 64}, 128, 2, 512) is None


def test_a_side_between_two_neighbours_does_not_exist() -> None:
    assert next_side({8.0: 100, 9.0: 140}, 120, 2, 512) is None


def test_tokens_of_one_table_have_the_same_axes(module: ModuleType) -> None:
    found, trials = search(module, "Translation")
    inputs, target = tensors(module, "Translation", found)
    assert inputs.shape == target.shape
    assert trials == 1, found.recipe


def test_what_a_class_holds_is_made_as_its_constructor_wants_it(module: ModuleType) -> None:
    found, _ = search(module, "Masked")
    tokens, mask = tensors(module, "Masked", found)
    assert type(mask) is module.Kept
    assert tokens.shape == (mask.bool_mask.shape[0], mask.bool_mask.shape[-1])
    assert mask.bool_mask.dtype == torch.bool


def test_shapes_without_spaces_and_indices_of_parents(module: ModuleType) -> None:
    turns, joints, parents = tensors(module, "chained", search(module, "chained")[0])
    assert turns.shape == (*joints.shape[:2], 3, 3)
    assert joints.shape[2:] == (3,)
    assert parents.shape == joints.shape[1:2]
    assert parents.dtype == torch.int64


def test_a_list_that_torch_wants_as_a_tensor_is_one(module: ModuleType) -> None:
    values, places = tensors(module, "chosen", search(module, "chosen")[0])
    assert places.dtype == torch.int64
    assert int(places.max()) < values.shape[1]


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("BxVx3, the points", ("B", "V", "3")),
        ("tensor Bx(Jx3)", ("B", "J * 3")),
        ("N x V x (J + 1)", ("N", "V", "J + 1")),
        ("state features (B, T, state_dim)", ("B", "T", "statedim")),
        ("valid lengths (B,) for masking", ("B",)),
        ("Image (I guess, wrongly)", None),
        ("a weight (N, optional)", None),
        ("pose Bx(J + 1) * 3", None),
    ],
)
def test_shapes_are_read_as_they_are_written(text: str, axes: tuple[str, ...] | None) -> None:
    assert axes_in(text) == axes


def test_a_distribution_is_one_of_torch_and_gradients_reach_its_parameters(module: ModuleType) -> None:
    found, trials = search(module, "divergence")
    assert trials == 1, found.recipe
    assert len(found.trial.gradients) == 4
    assert all(gradient is not None and bool(gradient.abs().sum() > 0) for gradient in found.trial.gradients)


def test_what_is_stacked_is_several_tensors(module: ModuleType) -> None:
    (items,) = tensors(module, "stacked", search(module, "stacked")[0])
    assert [item.shape for item in items] == [items[0].shape] * 2
