"""Modules of made-up packages are constructed without being told how, with sizes that stay apart."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from gradproof_probe.harness.constructors import Constructors
from gradproof_probe.harness.options import mode_options
from gradproof_probe.importing import Resolved
from gradproof_probe.request import Target

from tests.probe.constructing import constructed

MODELS = '''
from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Callable, Literal, Optional, Sequence, Union

import torch
from torch import nn

from .parts import Attend, Notation, Sized, check

class Mode(enum.Enum):
    FAST = 1
    EXACT = 2

@dataclass
class Inner:
    depth: int
    kind: Literal["a", "b"]

@dataclass
class Config:
    width: int
    inner: Inner
    ratio: float = 0.5

class ByAnnotation(nn.Module):
    def __init__(self, mode: Mode, kind: Literal["same", "valid"], size: tuple[int, int, int],
                 norm: type[nn.Module], act: Callable[[torch.Tensor], torch.Tensor], other: Optional[Config]):
        super().__init__()
        assert isinstance(mode, Mode) and kind in ("same", "valid") and len(size) == 3
        assert issubclass(norm, nn.Module) and callable(act) and isinstance(other.inner, Inner)

class Configured(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.first = nn.Linear(config.input_width, config.hidden_width)
        self.kind = config.act_name.lower()

class Keyed(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.first = nn.Linear(settings["in_dim"], settings["out_dim"])
        self.second = Attend(**settings["attend"])

class Chosen(nn.Module):
    def __init__(self, how):
        super().__init__()
        if how == "linear":
            self.layer = nn.Linear(8, 8)
        elif how == "conv":
            self.layer = nn.Conv1d(3, 3, 1)
        else:
            raise NotImplementedError(how)

class Stages(nn.Module):
    def __init__(self, things, counts):
        super().__init__()
        assert len(things) == len(counts) == 4
        self.layers = nn.ModuleList([nn.Linear(w, d) for w, d in zip(things, counts)])

class Factory(nn.Module):
    def __init__(self, make_layer, width):
        super().__init__()
        self.layer = make_layer(width, width)

class Block(nn.Module):
    growth = 2
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width * self.growth)

class Stacked(nn.Module):
    def __init__(self, block, width):
        super().__init__()
        self.layers = nn.Sequential(block(width), block(width * block.growth))

class Wrapper(nn.Module):
    def __init__(self, thing):
        super().__init__()
        self.thing = thing
        self.most = thing.longest
    def forward(self, x):
        return self.thing(x) + self.thing.offset

class Only(nn.Module):
    def __init__(self, thing):
        super().__init__()
        assert isinstance(thing, Sized), "only Sized will do"

class Spelled(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.spec = Notation(spec)

class Parent(nn.Module):
    def __init__(self, *, kernels, groups=32, depth):
        super().__init__()
        check(kernels % groups == 0, "kernels must be groups times something")

class Child(Parent):
    def __init__(self, name_of_it="x", **kwargs):
        super().__init__(**kwargs)

class OneOf(nn.Module):
    def __init__(self, small=None, large=None):
        super().__init__()
        if small is None and large is None:
            raise ValueError("must specify small or large")
        self.layer = nn.Linear(small or large, 3)

class Heads(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(embed_dim, num_heads)

class ManyHeads(nn.Module):
    def __init__(self, query_units, splits):
        super().__init__()
        self.attention = nn.MultiheadAttention(query_units, splits + 1)

class Endless(nn.Module):
    def __init__(self, inner: Endless):
        super().__init__()

class Lazy(nn.Module):
    def __init__(self, size, other=None):
        super().__init__()
        other = fallback(other, size)
        self.layer = nn.Linear(size, other)

def fallback(value, d):
    if value is not None:
        return value
    return d() if callable(d) else d

class Hostile(type(nn.Module)):
    def __instancecheck__(cls, other):
        raise RuntimeError("don't look")
    def __subclasscheck__(cls, other):
        raise RuntimeError("don't look")

class Prickly(metaclass=Hostile):
    pass

class Missing:
    def __getattr__(self, name):
        raise ImportError("the optional part is not installed")

class Holder(nn.Module):
    part = Missing()
    def __init__(self, holder_width: int):
        super().__init__()
        self.flavour_of_holder = holder_width

class Held(nn.Module):
    def __init__(self, holder):
        super().__init__()
        self.layer = nn.Linear(holder.flavour_of_holder, 3)

class Looked(nn.Module):
    def __init__(self, thing: Prickly = None, size: int = 4):
        super().__init__()
        if size % 3 or isinstance(thing, int):
            raise ValueError("size")

class Loss(nn.Module):
    """A loss.

    Args:
        form: 'l1' or 'l2'
        shape: a size
    """
    def __init__(self, form: str = "l1", reduction: str = "mean", squared: bool = False, verbose: bool = False, size=8):
        super().__init__()
        self.form, self.reduction, self.squared, self.verbose = form, reduction, squared, verbose
    def forward(self, x, y, way: Literal["up", "down"] = "up"):
        if self.squared:
            return (x - y) ** 2
        if self.verbose:
            print(x)
        return (x - y).abs()
'''

PARTS = """
import torch
from torch import nn

def check(condition, message):
    if not condition:
        raise ValueError(message)

class Notation(tuple):
    def __new__(cls, text):
        pairs = [part.split("*") for part in text.split("/")]
        return super().__new__(cls, [(int(n), name) for n, name in pairs])

EXAMPLE = Notation("2*u/3*v")

class Attend(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        assert dim % heads == 0

class Sized(nn.Module):
    def __init__(self, width, longest):
        super().__init__()
        self.longest = longest
        self.offset = width
        self.layer = nn.Linear(width, width)
    def forward(self, x):
        return self.layer(x)
"""


@dataclass(slots=True)
class Package:
    module: Any

    def target(self, name: str) -> Resolved:
        target = Target(name, "module", "models.py", 1, ".", self.module.__name__, name)
        return Resolved(target, self.module, getattr(self.module, name))

    def construct(self, name: str, tries: int = 40) -> tuple[torch.nn.Module, str, str, int]:
        """The module, its expression, how it was found and in how many tries."""
        made, candidate, count = constructed(self.target(name), tries=tries)
        return made, candidate.expression, candidate.found_by, count


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Package]:
    root: Path = tmp_path_factory.mktemp("submitted")
    folder = root / "madeup_models"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "models.py").write_text(MODELS)
    (folder / "parts.py").write_text(PARTS)
    sys.path.insert(0, str(root))
    try:
        yield Package(importlib.import_module("madeup_models.models"))
    finally:
        sys.path.remove(str(root))


@pytest.mark.parametrize(
    ("name", "found_by"),
    [
        ("ByAnnotation", "names"),
        ("Configured", "usage"),
        ("Keyed", "usage"),
        ("Chosen", "usage"),
        ("Factory", "usage"),
        ("Stacked", "usage"),
        ("Wrapper", "usage"),
        ("Held", "usage"),
        ("Only", "usage"),
        ("Spelled", "values"),
        ("Child", "guards"),
        ("OneOf", "guards"),
        ("Stages", "guards"),
        ("Heads", "names"),
        ("Lazy", "names"),
    ],
)
def test_a_module_is_constructed_and_says_how_that_was_found(package: Package, name: str, found_by: str) -> None:
    _, expression, found, count = package.construct(name)
    assert found == found_by, expression
    assert count <= 8, expression


def test_a_condition_inside_torch_changes_the_submitted_argument(package: Package) -> None:
    _, expression, found, _ = package.construct("ManyHeads")
    assert found == "guards", expression


def test_a_wrapper_gets_the_class_of_the_package_that_has_what_it_uses(package: Package) -> None:
    made, *_ = package.construct("Wrapper")
    assert type(made.thing).__name__ == "Sized"


def test_a_value_that_is_called_only_if_it_can_be_is_a_number(package: Package) -> None:
    made, *_ = package.construct("Lazy")
    assert isinstance(made.layer.in_features, int)


def test_widths_stay_apart(package: Package) -> None:
    made, *_ = package.construct("Configured")
    assert made.first.in_features != made.first.out_features


def test_a_class_that_needs_itself_ends(package: Package) -> None:
    constructors = Constructors.of(package.target("Endless"))
    assert sum(1 for _ in iter(constructors.take, None)) < 60


def test_classes_that_raise_when_they_are_looked_at_stop_nothing(package: Package) -> None:
    made, expression, _, _ = package.construct("Looked")
    assert made is not None
    assert expression != "Looked()"


def test_expressions_are_the_same_every_time(package: Package) -> None:
    first = [c.expression for c in Constructors.of(package.target("Stages")).candidates()]
    again = [c.expression for c in Constructors.of(package.target("Stages")).candidates()]
    assert first == again
    assert len(set(first)) == len(first)


def test_modes_are_words_and_flags_that_a_call_tests(package: Package) -> None:
    inputs = ("torch.randn(2, 3)", "torch.randn(2, 3)")
    variants = mode_options(package.target("Loss"), "Loss()", inputs)
    options = [variant.option for variant in variants]
    assert options == ["form='l2'", "reduction='sum'", "reduction='none'", "way='down'", "squared=True"]
    changed = next(variant for variant in variants if variant.option == "reduction='sum'")
    assert (changed.constructor, changed.inputs) == ("Loss(reduction='sum')", inputs)
    called = next(variant for variant in variants if variant.option == "way='down'")
    assert (called.constructor, called.inputs) == ("Loss()", (*inputs, "way='down'"))


def test_a_mode_in_use_is_no_option(package: Package) -> None:
    options = [v.option for v in mode_options(package.target("Loss"), "Loss('l2', reduction='none')", ())]
    assert "form='l1'" in options
    assert "form='l2'" not in options
    assert "reduction='none'" not in options
