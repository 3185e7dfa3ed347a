"""Recorded calls that are large are made smaller, as far as they run the same way."""

from __future__ import annotations

import time
from types import ModuleType

import pytest
import torch
from gradproof_probe.harness.lightening import FEW, lightened
from gradproof_probe.harness.recipe import Recipe
from gradproof_probe.importing import Resolved
from gradproof_probe.request import Target


class Tokens(torch.nn.Module):
    """Attention over tokens, `depth` times."""

    def __init__(self, dim: int, heads: int, depth: int = 1) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.MultiheadAttention(dim, heads) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x, x, x, need_weights=False)[0]
        return x


class Windows(torch.nn.Module):
    """As many outputs as the input has windows of 65536."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.linear(x).split(65536)


class Sized(torch.nn.Module):
    """Takes one number of tokens only."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[0] == 384
        return self.linear(x)


def light(module: type, constructor: str, *inputs: str, source: str = "mined") -> Recipe:
    home = ModuleType("large")
    vars(home)[module.__name__] = module
    target = Target(f"large:{module.__name__}", "module", "large.py", 1, "", "large", module.__name__)
    recipe = Recipe(source, "A", constructor, inputs, "README.md:3", found_by="readme")  # type: ignore[arg-type]
    resolved = Resolved(target, home, module)
    return lightened(resolved, recipe, seed=0, deadline=time.monotonic() + 60)


def test_sizes_of_a_large_call_are_halved_and_the_provenance_says_so() -> None:
    found = light(Tokens, "Tokens(256, 8)", "torch.randn(160, 4, 256)")
    assert found.inputs == ("torch.randn(80, 4, 128)",)
    assert found.constructor == "Tokens(128, 8)"
    assert found.provenance == "README.md:3; made smaller, since it runs the same way: sizes halved"


def test_odd_sizes_stay_odd_and_even_ones_even() -> None:
    found = light(Tokens, "Tokens(256, 8)", "torch.randn(147, 4, 256)")
    assert found.inputs == ("torch.randn(75, 4, 128)",)


def test_one_size_is_halved_where_others_are_needed_as_they_are() -> None:
    found = light(Sized, "Sized(512)", "torch.randn(384, 512)")
    assert (found.constructor, found.inputs) == ("Sized(256)", ("torch.randn(384, 256)",))


def test_a_size_never_becomes_one_that_is_there_already() -> None:
    """Equal sizes would hide a transposition."""
    found = light(Sized, "Sized(768)", "torch.randn(384, 768)")
    assert found.inputs == ("torch.randn(384, 192)",)


def test_what_gives_other_outputs_then_stays_as_it_is() -> None:
    found = light(Windows, "Windows(9)", "torch.randn(524288, 9)")
    assert found.inputs == ("torch.randn(524288, 9)",)


def test_layers_are_left_out_down_to_two() -> None:
    deep = f"Tokens(8, 2, depth={FEW // 10})"
    assert light(Tokens, deep, "torch.randn(3, 2, 8)").constructor == "Tokens(8, 2, depth=2)"


def test_a_width_is_no_depth() -> None:
    class Wide(Tokens):
        def __init__(self, layer_dim: int, layers: tuple[int, ...]) -> None:
            super().__init__(layer_dim, 2, sum(layers))

    found = light(Wide, f"Wide(layer_dim=12, layers=(1, {FEW // 10}, 2))", "torch.randn(3, 2, 12)")
    assert found.constructor == "Wide(layer_dim=12, layers=(1, 2, 2))"


@pytest.mark.parametrize("source", ["declared", "synthesised"])
def test_only_what_was_recorded_is_made_smaller(source: str) -> None:
    found = light(Tokens, "Tokens(256, 8)", "torch.randn(160, 4, 256)", source=source)
    assert found.inputs == ("torch.randn(160, 4, 256)",)


def test_a_light_call_stays_as_it_is() -> None:
    found = light(Tokens, "Tokens(32, 4)", "torch.randn(20, 2, 32)")
    assert (found.constructor, found.inputs) == ("Tokens(32, 4)", ("torch.randn(20, 2, 32)",))


def test_the_same_call_is_always_made_the_same() -> None:
    calls = [light(Tokens, "Tokens(256, 8)", "torch.randn(160, 4, 256)") for _ in range(2)]
    assert calls[0] == calls[1]


def test_keyword_and_unpacked_inputs_are_read_as_well() -> None:
    found = light(Tokens, "Tokens(dim=256, heads=8)", "x=torch.randn(160, 4, 256)")
    assert found.inputs == ("x=torch.randn(80, 4, 128)",)
    found = light(Tokens, "Tokens(dim=256, heads=8)", "*[torch.randn(160, 4, 256)]")
    assert found.inputs == ("*[torch.randn(80, 4, 128)]",)
