"""Calls are written down as expressions that can be evaluated again, by nothing but watching the code run."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from gradproof_probe.mining.expressions import UnwritableError, Writer
from gradproof_probe.mining.parts import record_parts
from gradproof_probe.mining.recorder import Built, Call, Recorder

SOURCE = '''
import copy, dataclasses, enum, functools
import torch
from torch import nn

class Mode(enum.Enum):
    SUM = "sum"

@dataclasses.dataclass
class Config:
    width: int
    mode: Mode = Mode.SUM

class Inner(nn.Module):
    def __init__(self, width, act=nn.ReLU(), *, scale=1.0):
        super().__init__()
        self.linear, self.act, self.scale = nn.Linear(width, width), act, scale
    def forward(self, x, mask=None):
        return self.act(self.linear(x)) * self.scale

class Derived(Inner):
    """Without a constructor or forward of its own."""

class Outer(nn.Module):
    def __init__(self, inner, config, count=2):
        super().__init__()
        self.layers = nn.ModuleList([copy.deepcopy(inner) for _ in range(count)])
        self.config = config
    def forward(self, x, *others, **options):
        for layer in self.layers:
            x = layer(x, mask=None)
        return scaled(x, self.config.mode)

class Popping(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.width = options.pop("width") if isinstance(options, dict) else options.pop()
    def forward(self, x):
        return x * self.width

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, by):
        return x * by
    @staticmethod
    def backward(ctx, g):
        return g * 2, None

class Base(nn.Module):
    pass

class Chain(nn.Sequential):
    pass

def scaled(x, mode, by=2.0):
    return Double.apply(x, by)

def decorate(f):
    @functools.wraps(f)
    def wrapper(*a, **k):
        return f(*a, **k)
    return wrapper

@decorate
def decorated(x, dim=-1):
    return x.softmax(dim)

def recursive(x, depth):
    return x if depth == 0 else recursive(x * 2, depth - 1)

def generator(x):
    yield x
    yield x * 2

def rebinds(x):
    use = lambda: x
    x = x * 2
    return use()

def raising(x):
    raise ValueError("no")
'''


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    root = tmp_path_factory.mktemp("recorded")
    (root / "recordedpkg.py").write_text(SOURCE, encoding="utf-8")
    sys.path.insert(0, str(root))
    yield importlib.import_module("recordedpkg")
    sys.path.remove(str(root))
    del sys.modules["recordedpkg"]


def record(package: ModuleType, run: Callable[[], object]) -> dict[str, list[Call]]:
    found: dict[str, list[Call]] = {}
    root = Path(str(package.__file__)).parent
    with Recorder(root, lambda call: found.setdefault(call.target.partition(":")[2], []).append(call)).watching():
        run()
    return found


def evaluated(package: ModuleType, text: str) -> Any:
    return eval(text, {**vars(package), "torch": torch})


def form(package: ModuleType, run: Callable[[], object], target: str) -> tuple[str | None, tuple[str, ...]]:
    return record(package, run)[target][0].forms[0]


def test_a_module_is_recorded_as_it_was_built_and_called(package: ModuleType) -> None:
    constructor, inputs = form(package, lambda: package.Inner(6, scale=3.0)(torch.randn(2, 6)), "Inner")
    assert constructor == "Inner(6, scale=3.0)"
    assert inputs == ("torch.randn((2, 6))",)
    assert evaluated(package, constructor)(evaluated(package, inputs[0])).shape == (2, 6)


def test_modules_given_to_a_constructor_become_constructors_themselves(package: ModuleType) -> None:
    def run() -> None:
        inner = package.Inner(4, torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Dropout(0.1)))
        package.Outer(inner, package.Config(3), count=1)(torch.randn(2, 4), None, flag=True)

    constructor, inputs = form(package, run, "Outer")
    assert constructor == "Outer(Inner(4, torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Dropout(0.1))), Config(3), 1)"
    assert inputs == ("torch.randn((2, 4))", "None", "flag=True")
    evaluated(package, f"{constructor}({', '.join(inputs)})")


def test_what_a_parent_calls_is_recorded_with_the_parent(package: ModuleType) -> None:
    def run() -> object:
        return package.Outer(package.Inner(4), package.Config(3))(torch.randn(2, 4))

    parts = record_parts(run, Path(str(package.__file__)).parent)
    assert "recordedpkg:Outer" not in parts
    inner, exact = parts["recordedpkg:Inner"]  # two copies of one layer, called alike, are one call
    assert exact["inputs"][0].startswith("torch.tensor([[")
    assert inner == {
        "constructor": "Inner(4)",
        "inputs": ["torch.randn((2, 4))"],
        "provenance": "called by recordedpkg:Outer",
        "found_by": "parent",
    }
    scaled, *_ = parts["recordedpkg:scaled"]
    assert scaled["inputs"][1:] == ["Mode['SUM']"]
    function, *_ = parts["recordedpkg:Double"]
    assert (function["inputs"][1:], function["provenance"]) == (["2.0"], "called by recordedpkg:scaled")


def test_what_a_harness_raises_is_raised(package: ModuleType) -> None:
    with pytest.raises(ValueError, match="no"):
        record_parts(lambda: package.raising(torch.randn(2)), Path(str(package.__file__)).parent)
    assert sys.getprofile() is None


def test_inherited_constructors_and_forwards_belong_to_the_derived_class(package: ModuleType) -> None:
    assert form(package, lambda: package.Derived(3)(torch.randn(2, 3)), "Derived")[0] == "Derived(3)"
    constructor, _ = form(package, lambda: package.Chain(torch.nn.Linear(2, 3))(torch.randn(4, 2)), "Chain")
    assert constructor == "Chain(torch.nn.Linear(2, 3))"


def test_options_that_the_constructor_takes_out_of_a_dict_or_list_are_still_in_it(package: ModuleType) -> None:
    constructor, _ = form(package, lambda: package.Popping({"width": 3})(torch.randn(2)), "Popping")
    assert constructor == "Popping({'width': 3})"
    constructor, _ = form(package, lambda: package.Popping([2, 3])(torch.randn(2)), "Popping")
    assert constructor == "Popping([2, 3])"


def test_decorated_functions_and_arguments_used_by_inner_functions_are_recorded(package: ModuleType) -> None:
    assert form(package, lambda: package.decorated(torch.randn(2, 3), 1), "decorated")[1][1:] == ("1",)
    assert form(package, lambda: package.rebinds(torch.randn(2, 3)), "rebinds")[1] == ("torch.randn((2, 3))",)


def test_recursion_generators_threads_and_failures_do_not_disturb_the_code(package: ModuleType) -> None:
    def run() -> None:
        assert package.recursive(torch.ones(2), 50)[0] == 2**50
        assert [float(value) for value in package.generator(torch.tensor(1.5))] == [1.5, 3.0]
        thread = threading.Thread(target=lambda: package.decorated(torch.randn(2, 3)))
        thread.start()
        thread.join()
        with pytest.raises(ValueError, match="no"):
            package.raising(torch.randn(2))

    found = record(package, run)
    assert "generator" not in found
    assert len(found["recursive"]) <= 6
    assert found["raising"]  # how it was called is right, whatever came of it


def test_recording_draws_no_random_number_and_changes_no_argument(package: ModuleType) -> None:
    value = torch.randn(8, 8)
    before, kept = torch.random.get_rng_state(), value.clone()
    record(package, lambda: package.decorated(value))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(value, kept)
    assert value._version == 0


def test_a_large_call_is_offered_smaller_first(package: ModuleType) -> None:
    call = record(package, lambda: package.decorated(torch.randn(16, 3, 64, 96)))["decorated"][0]
    assert [inputs[0] for _, inputs in call.forms] == [
        "torch.randn((2, 3, 16, 12))",
        "torch.randn((2, 3, 64, 96))",
        "torch.randn((16, 3, 64, 96))",
    ]


def written(value: Any, *, exact: bool = False) -> str:
    return Writer({}, Built(), exact=exact).write(value)


@pytest.mark.parametrize(
    ("value", "holds"),
    [
        (torch.randn(4, 5).softmax(-1), lambda t: torch.allclose(t.sum(-1), torch.ones(4))),
        (
            torch.nn.functional.normalize(torch.randn(4, 5), dim=-1),
            lambda t: torch.allclose(t.norm(dim=-1), torch.ones(4)),
        ),
        (torch.linalg.qr(torch.randn(3, 3))[0], lambda t: torch.allclose(t @ t.T, torch.eye(3), atol=1e-5)),
        (torch.eye(3).expand(2, 3, 3) + 1, lambda t: torch.equal(t, t.mT)),
        (torch.rand(20).sort().values * 7 - 2.123, lambda t: bool((t.diff() >= 0).all())),
        (torch.rand(3, 40) * 9.87 + 1, lambda t: bool((t >= 1).all())),
        (torch.full((3, 4), 0.5), lambda t: bool((t >= 0).all() and (t <= 1).all())),
        (torch.tensor([[1.0, 0, 5], [0, 1, 3], [0, 0, 1]]), lambda t: t[2].tolist() == [0, 0, 1]),
        (torch.randint(0, 2, (6, 6)).float(), lambda t: set(t.unique().tolist()) <= {0.0, 1.0}),
        (torch.complex(torch.randn(3), torch.randn(3)), lambda t: t.is_complex()),
        (torch.randn(3).half(), lambda t: t.dtype == torch.float16),
    ],
)
def test_floating_tensors_are_drawn_with_the_structure_that_was_seen(
    value: torch.Tensor, holds: Callable[[torch.Tensor], bool]
) -> None:
    drawn = eval(written(value), {"torch": torch})
    assert drawn.shape == value.shape
    assert holds(drawn), written(value)
    assert not torch.equal(drawn, value)


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(3, 9),
        torch.tensor([4, 1, 1]),
        torch.ones(3, 4, dtype=torch.bool).tril(),
        torch.arange(6) < torch.tensor([[2], [5]]),
        torch.zeros(2, 3, dtype=torch.int32),
        torch.full((4, 4), float("-inf")).triu(1),
    ],
)
def test_integers_and_masks_are_kept(value: torch.Tensor) -> None:
    kept = eval(written(value), {"torch": torch})
    assert torch.equal(kept, value)
    assert kept.dtype == value.dtype


@pytest.mark.parametrize(
    "value", [torch.eye(3).repeat(2, 1, 1), torch.ones(7), torch.linspace(0, 1, 200), torch.tensor(2.5)]
)
def test_the_exact_numbers_can_be_had(value: torch.Tensor) -> None:
    assert torch.allclose(eval(written(value, exact=True), {"torch": torch}), value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        -1.5,
        float("inf"),
        "text",
        (1,),
        [1, (2, "x")],
        {"a": [1]},
        slice(1, None),
        torch.float64,
        torch.Size([2]),
    ],
)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    assert eval(written(value), {"torch": torch}) == value


def test_functions_are_reached_by_name(package: ModuleType) -> None:
    for function in (torch.relu, torch.nn.functional.gelu, package.scaled, len):
        assert eval(written(function), {"torch": torch}) is function


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (lambda x: x, "without a name that can be reached"),
        (object(), "whose construction wasn't seen"),
        (torch.tensor([float("nan")]), "NaN"),
        (torch.nn.Linear(2, 2), "whose construction wasn't seen"),
        (list(range(1000)), "1000 items"),
    ],
)
def test_what_cannot_be_written_says_why(value: Any, why: str) -> None:
    with pytest.raises(UnwritableError, match=why):
        written(value)
