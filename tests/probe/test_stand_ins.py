"""A layer given to a constructor is called as the author's would be: with more arguments, or as one of a pair."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
from gradproof_probe.harness.recipe import Recipe
from gradproof_probe.harness.structured import function_of_arity
from gradproof_probe.harness.synthesis import find_recipe
from gradproof_probe.importing import Resolved
from gradproof_probe.request import Target


class Masked(torch.nn.Module):
    def __init__(self, fn: Any) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
        return x + self.fn(x, mask, scale=2.0)


class Pairs(torch.nn.Module):
    def __init__(self, layers: Any) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor) -> Any:
        for attend, feed in list(zip(self.layers, range(9), strict=False)):
            first, second = attend
            x = second(first(x)) + feed
        return x


class Denoised(torch.nn.Module):
    def __init__(self, net: Any, image_size: int = 24) -> None:
        super().__init__()
        self.net, self.image_size = net, image_size

    def forward(self, images: torch.Tensor) -> Any:
        assert images.shape[1:] == (3, self.image_size, self.image_size)
        return self.net(images, torch.zeros(len(images)), None)


def checked(ok: bool, words: str) -> None:
    if not ok:
        raise ValueError(words)


class Windowed(torch.nn.Module):
    def __init__(self, window_size: int) -> None:
        super().__init__()
        self.window_size = window_size

    def forward(self, x: torch.Tensor) -> Any:
        for size in (self.window_size, self.window_size):
            checked(size % 2 == 1, "the size must be odd")
        return x.tanh() * self.window_size


class Turned(torch.nn.Module):
    def __init__(self, angle: torch.Tensor) -> None:
        super().__init__()
        self.angle = angle

    def forward(self, points: torch.Tensor) -> Any:
        if not len(self.angle.shape) == 3:
            raise ValueError("one angle for each point, please")
        return points.sin() * self.angle.mean()


class Positions(torch.nn.Module):
    """Where a sixth of the width is one frequency, its table is 0 / 0."""

    widths: ClassVar[list[int]] = []

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.widths.append(dim)
        self.lift = torch.nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> Any:
        frequencies = torch.arange(x.shape[-1] // 6)
        return self.lift(x) * (frequencies / (len(frequencies) - 1)).sum()


def found(cls: type) -> Recipe:
    module = ModuleType(__name__)
    vars(module).update(globals())
    target = Target(f"{__name__}:{cls.__name__}", "module", __file__, 1, "", __name__, cls.__name__)
    return find_recipe(Resolved(target, module, cls), None, seed=0, deadline=time.monotonic() + 60)


@pytest.mark.parametrize("cls", [Masked, Pairs, Denoised])
def test_it_runs_with_layers_that_take_what_they_are_given(cls: type) -> None:
    recipe = found(cls)
    assert recipe.reason is None, recipe
    assert "layer" in recipe.provenance or "takes further arguments" in recipe.provenance


def test_what_a_call_asks_of_a_kept_argument_is_given_to_the_constructor() -> None:
    recipe = found(Windowed)
    assert recipe.reason is None
    assert "so that" in recipe.provenance or "self.window_size = " in recipe.provenance, recipe.provenance
    assert recipe.found_by == "guards"


def test_a_kept_tensor_has_the_axes_that_a_call_asks_for() -> None:
    assert found(Turned).constructor == "Turned(angle=torch.rand(2, 2, 2))"


def test_after_a_width_at_which_the_call_is_not_finite_a_larger_one_is_tried() -> None:
    recipe = found(Positions)
    assert Positions.widths[:2] == [8, 64]
    assert recipe.constructor == "Positions(dim=64)"


def test_a_function_that_is_called_depends_on_all_tensors_it_is_given() -> None:
    function = eval(function_of_arity(3), {"torch": torch})
    first, last = torch.randn(4, 5, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    answer = function(0.5, first, None, last, mode="sum")
    assert answer.shape == last.shape
    assert all(gradient.abs().sum() > 0 for gradient in torch.autograd.grad(answer.sum(), (first, last)))
