"""Modules that are built of descriptions: spaces by another package's base class, configs with the author's sizes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from gradproof_probe.harness.constructors import Constructors
from gradproof_probe.harness.recipe import ExpressionError, construct
from gradproof_probe.importing import Resolved
from gradproof_probe.request import Target

from tests.probe.constructing import constructed

# A package that the submitted code depends on. Its base class is no abstract one: only its methods raise.
ROOMS = '''
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from elsewhere import Real

T = TypeVar("T")

class Room(Generic[T]):
    def __init__(self, shape=None):
        self.shape = shape
    def sample(self) -> T:
        """One of its elements."""
        raise NotImplementedError

class Between(Room[float]):
    def __init__(self, low: Real, high: Real, shape: tuple[int, ...] | None = None, dtype="float32"):
        assert low < high
        self.low, self.high, self.shape, self.dtype = low, high, shape or (1,), dtype
    def sample(self):
        return self.low

class Places(Room[dict], Mapping):
    def __init__(self, rooms: dict[str, Room[T]] | Real | None = None):
        self.rooms = dict(rooms or {})
        assert all(isinstance(room, Room) for room in self.rooms.values())
    def sample(self):
        return {name: room.sample() for name, room in self.rooms.items()}
    def __getitem__(self, name):
        return self.rooms[name]
    def __iter__(self):
        return iter(self.rooms)
    def __len__(self):
        return len(self.rooms)
'''

# A parent's fields, whose annotations are texts that mean something in this module only.
FIELDS = """
from __future__ import annotations

from dataclasses import dataclass

@dataclass
class Part:
    width: int

@dataclass
class Fields:
    part: Part
"""

NETWORKS = """
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from madeup_fields import Fields
from madeup_rooms import Places, Room
from torch import nn

def is_picture(room):
    return len(room.shape) == 3 and room.dtype == "uint8" and room.high == 255

class Flat(nn.Module):
    def __init__(self, room: Room):
        super().__init__()
        self.layer = nn.Linear(room.shape[0], 3)
        self.first = room.sample()

class Pictures(nn.Module):
    def __init__(self, room: Room):
        super().__init__()
        if not is_picture(room):
            raise ValueError("only with pictures")
        self.layer = nn.Conv2d(room.shape[0], 3, 8, stride=4)

class Several(nn.Module):
    def __init__(self, rooms: Places):
        super().__init__()
        self.layers = nn.ModuleDict({name: nn.Linear(room.shape[0], 3) for name, room in rooms.items()})
        assert len(self.layers) > 0

class Scheduled(nn.Module):
    def __init__(self, rate: Callable[[float], float]):
        super().__init__()
        self.rate = rate(1.0) + 0.0

@dataclass
class Author:
    hidden_width: int = 4096
    n_heads: int = 32
    n_layers: int = 48
    rotary_base: int = 10000
    dtype: torch.dtype = torch.bfloat16

class Written(nn.Module):
    def __init__(self, config: Author, *, device: torch.device | None = None):
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(
            [nn.Linear(config.hidden_width, 8, dtype=config.dtype, device=device) for _ in range(config.n_layers)]
        )

class Turned(Written):
    def __init__(self, config: Author, *, device: torch.device | None = None):
        super().__init__(config, device=device)
        width = config.hidden_width // config.n_heads // 4
        self.turn = nn.Parameter(torch.zeros(width, device=device).view(2, -1))

@dataclass
class Attention:
    hidden_width: int
    heads: int

@dataclass
class Layer:
    hidden_width: int
    attention: Attention

class Nested(nn.Module):
    def __init__(self, layer: Layer):
        super().__init__()
        assert layer.hidden_width == layer.attention.hidden_width
        width = layer.attention.hidden_width // layer.attention.heads // 4
        self.turn = nn.Parameter(torch.zeros(width).view(2, -1))

class Fingers(nn.Module):
    def __init__(self, places):
        super().__init__()
        sides = [places[side + finger] for side in ("l_", "r_") for finger in ("thumb", "index")]
        self.places = places
        self.kept = [places["first"], *sides]

class Stored(nn.Module):
    def __init__(self, model_path, width):
        super().__init__()
        if isinstance(model_path, int):
            raise AssertionError("opened as a descriptor")
        with open(model_path) as file:
            self.layer = nn.Linear(width, int(file.read()))

class WrittenOrRead:
    def __init__(self, vocab_size_or_config_json_file, width=768):
        if isinstance(vocab_size_or_config_json_file, str):
            with open(vocab_size_or_config_json_file) as file:
                self.__dict__.update(eval(file.read()))
        else:
            self.vocab_size, self.width = vocab_size_or_config_json_file, width

class OfEither(nn.Module):
    def __init__(self, config):
        super().__init__()
        if not isinstance(config, WrittenOrRead):
            raise ValueError(f"{config} is no configuration")
        self.table = nn.Embedding(config.vocab_size, config.width)

class Grouped(nn.Module):
    def __init__(self, matrix):
        super().__init__()
        self.matrix = matrix.to(matrix.device)
        self.layers = nn.ModuleList([nn.Linear(matrix.shape[1], 1) for _ in range(matrix.shape[0])])

class Defaulted(nn.Module):
    def __init__(self, matrix=[]):
        super().__init__()
        self.matrix = matrix.to(matrix.device)

class Tied(nn.Module):
    def __init__(self, embedding_weights):
        super().__init__()
        self.layer = nn.Linear(embedding_weights.size(1), embedding_weights.size(0), bias=False)
        self.layer.weight = embedding_weights

SomeConfig = TypeVar("SomeConfig")

class OfConfig(nn.Module, Generic[SomeConfig]):
    def __init__(self, given: SomeConfig):
        super().__init__()
        assert isinstance(given, Author | Extended), type(given)
        self.given = given

class OfAuthor(OfConfig[Author]):
    pass

@dataclass
class Extended(Fields):
    more: int = 2

class OfExtended(OfConfig["Extended"]):
    def __init__(self, given: Extended):
        super().__init__(given)
        assert type(given.part).__name__ == "Part", type(given.part)
"""


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    root: Path = tmp_path_factory.mktemp("descriptions")
    (root / "madeup_rooms.py").write_text(ROOMS)
    (root / "madeup_fields.py").write_text(FIELDS)
    (root / "madeup_networks").mkdir()
    (root / "madeup_networks" / "__init__.py").write_text("")
    (root / "madeup_networks" / "networks.py").write_text(NETWORKS)
    sys.path.insert(0, str(root))
    try:
        yield importlib.import_module("madeup_networks.networks")
    finally:
        sys.path.remove(str(root))


def built(networks: ModuleType, name: str, tries: int = 8) -> tuple[torch.nn.Module, str]:
    target = Target(name, "module", "networks.py", 1, ".", networks.__name__, name)
    resolved = Resolved(target, networks, getattr(networks, name))
    made, candidate, _ = constructed(resolved, tries=tries)
    return made, candidate.expression


def test_a_base_class_of_another_package_is_given_as_a_class_that_derives_from_it(networks: ModuleType) -> None:
    made, expression = built(networks, "Flat", tries=1)
    assert "Between(" in expression
    assert made.layer.in_features == 8


def test_bounds_and_a_shape_are_also_tried_as_those_of_an_image(networks: ModuleType) -> None:
    made, expression = built(networks, "Pictures")
    assert made.layer.in_channels == 3
    assert "dtype='uint8'" in expression


def test_a_container_of_another_package_holds_what_its_annotation_says(networks: ModuleType) -> None:
    made, _ = built(networks, "Several", tries=2)
    assert all(layer.in_features == 8 for layer in made.layers.values())


def test_a_callable_is_given_that_answers_with_what_its_annotation_says(networks: ModuleType) -> None:
    made, _ = built(networks, "Scheduled", tries=1)
    assert isinstance(made.rate, float)


def test_a_config_is_small_before_it_is_the_authors(networks: ModuleType) -> None:
    made, expression = built(networks, "Written", tries=1)
    assert made.config.hidden_width <= 16
    assert made.config.n_layers == 1
    assert made.config.rotary_base == 10000  # of powers: no size
    assert made.config.dtype == torch.float32
    assert "device" not in expression


@pytest.mark.parametrize("name", ["Turned", "Nested"])
def test_where_a_small_config_is_too_small_its_widths_are_larger_together(networks: ModuleType, name: str) -> None:
    _, expression = built(networks, name, tries=4)
    assert "width=64" in expression
    assert "device" not in expression


def test_a_key_that_is_composed_while_constructing_is_added_to_the_mapping(networks: ModuleType) -> None:
    made, _ = built(networks, "Fingers", tries=16)
    assert {*made.places} == {"first", "l_thumb", "l_index", "r_thumb", "r_index"}


def test_a_place_of_a_file_is_never_a_number(networks: ModuleType) -> None:
    target = Target("Stored", "module", "networks.py", 1, ".", networks.__name__, "Stored")
    resolved = Resolved(target, networks, networks.Stored)
    constructors = Constructors.of(resolved)
    tried = []
    while (candidate := constructors.take()) is not None and len(tried) < 30:
        tried.append(candidate.expression)
        with pytest.raises(ExpressionError) as raised:
            construct(resolved, candidate.expression, seed=0)
        constructors.failed(candidate, raised.value.cause)
    assert tried
    assert not [expression for expression in tried if "model_path='" not in expression]


def test_a_file_that_may_as_well_be_a_size_is_a_size(networks: ModuleType) -> None:
    made, _ = built(networks, "OfEither")
    assert made.table.num_embeddings < 64


@pytest.mark.parametrize("name", ["Grouped", "Defaulted"])
def test_what_has_a_shape_is_a_tensor(networks: ModuleType, name: str) -> None:
    made, _ = built(networks, name, tries=5)
    assert isinstance(made.matrix, torch.Tensor)


def test_weights_that_become_those_of_a_layer_are_a_parameter_with_a_row_for_each_word(networks: ModuleType) -> None:
    made, expression = built(networks, "Tied", tries=2)
    assert "torch.nn.Parameter(" in expression
    assert made.layer.weight.shape == (11, 12)


@pytest.mark.parametrize("name", ["OfAuthor", "OfExtended"])
def test_annotations_mean_what_they_mean_in_the_class_that_has_them(networks: ModuleType, name: str) -> None:
    made, _ = built(networks, name, tries=1)
    assert made.given is not None
