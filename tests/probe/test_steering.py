"""For every kind of predicate in a backward, the situations that its code suggests contain one that reaches the branch.

Each Function is run for real in each situation, once read from its source and once from its bytecode alone.
"""

from __future__ import annotations

import contextlib
import linecache
import math
from typing import Any

import pytest
import torch
from gradproof_probe.gradients.clues import clues_from_hints, read_clues
from gradproof_probe.gradients.experiment import BackwardError, ForwardError
from gradproof_probe.gradients.resizing import LARGEST, beyond, exactly, resized_shapes
from gradproof_probe.gradients.situations import ORDINARY, Situation
from gradproof_probe.gradients.steering import steered
from gradproof_probe.gradients.subject import NotApplicableError, Subject

TEMPLATE = """
import functools
import math
import threading
import torch
import torch.nn.functional as F

BLOCK = 128
LIMITS = {{"rows": 40, "columns": 50}}
ALLOWED = (torch.float16, torch.bfloat16)
counter = 0
seen = {{}}
reached = []

def is_long(tensor, limit=30):
    return tensor.shape[-1] > limit

def noted(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)
    return inner

@noted
def checked(tensor):
    return tensor.dim()

def is_wide_and_many(tensor):
    if tensor.dim() != 3:
        return False
    return tensor.shape[-1] > 41

def is_many_or_flat(tensor):
    if tensor.shape[-1] < 43:
        return 1
    else:
        if tensor.shape[0] == 1:
            return 3
    return 2

class Options:
    limit = 70

class Wrong(torch.autograd.Function):
    calls = 0
    limit = 60

    @staticmethod
    def forward(ctx, x, y, mode="mean", dim=-1, scale=1.0, flag=False, power=2):
        ctx.mode, ctx.dim, ctx.scale, ctx.flag, ctx.power = mode, dim, scale, flag, power
        ctx.columns = x.shape[-1]
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        global counter
        x, y = ctx.saved_tensors
        {setup}
        if {predicate}:
            reached.append(True)
        return g * y, g * x, None, None, None, None, None
"""
NAMES = ["x", "y", "mode", "dim", "scale", "flag", "power"]

PREDICATES = [
    # sizes
    "x.numel() > 65536",
    "x.numel() >= 1000",
    "x.nelement() == 4096",
    "n > 5000 | n = x.numel()",
    "x.shape[0] == 1",
    "x.size(0) == 1",
    "len(x) == 3",
    "x.shape[-1] > 64",
    "x.size(-1) % 5 == 0",
    "x.shape[1] % 16 == 3",
    "ctx.columns > 300",
    "columns > BLOCK | rows, columns = x.shape",
    "columns > BLOCK | *_, columns = g.shape",
    "g.shape[1] >= Wrong.limit",
    "g.shape[1] >= Options.limit",
    "x.shape[0] > LIMITS['rows']",
    "x.shape[-1] > 4 * BLOCK",
    "x.shape[-1] > 1 << 9",
    "x.numel() > 2 ** 12",
    "x.numel() // 128 > 4",
    "(n + 127) // 128 > 1 | n = x.shape[-1]",
    "n & (n - 1) == 0 | n = x.shape[-1]",
    "n & 7 == 3 | n = x.shape[-1]",
    "x.shape[0] > x.shape[1]",
    "100 < x.shape[-1] < 200",
    "x.shape[-1] in (96, 160)",
    "max(x.shape) > 77",
    "math.prod(x.shape) > 3000",
    "is_long(x)",
    "is_long(g, limit=90)",
    "x[:, 256:].numel()",
    "len(x.split(64, dim=-1)) > 1",
    "len(range(0, n, BLOCK)) > 1 | n = x.shape[-1]",
    "any(size > 50 for size in x.shape)",
    "x.shape == (4, 11)",
    "min(x.shape) >= 16",
    "len(set(x.shape)) == 1",
    "all(size % 8 == 0 for size in x.shape)",
    "x.shape[-1] in LIMITS.values()",
    "math.log2(x.numel()) > 12",
    "divmod(x.shape[-1], 32)[1] == 0",
    "not x.shape[0] - 1",
    "sizes['columns'] > 64 | sizes = {'columns': x.shape[-1]}",
    "shapes[1][-1] > 64 | shapes = [t.shape for t in (x, y)]",
    "x.view(-1).shape[0] > 1000",
    # ranks
    "x.dim() == 3",
    "g.ndim == 1",
    "len(x.shape) > 2",
    "x.ndimension() != 2",
    # values
    "(x > 3).any()",
    "(x.abs() > 5).any()",
    "(x == 0).any()",
    "(x * 2 + 1 > 13).any()",
    "(x ** 2 > 20).any()",
    "torch.any(torch.exp(x) > 50)",
    "x.max() > 9",
    "x.abs().max() < 0.01",
    "(x == 0).all()",
    "(x > 0).all()",
    "(x < -2).all()",
    "torch.all(x == x[0])",
    "torch.allclose(x, x.mean())",
    "x.max() == x.min()",
    "x.std() == 0",
    "x.sum() > 500",
    "x.norm() > 300",
    "x.mean() < -5",
    "x.mean().abs() < 1e-2",
    "x.max() - x.min() > 40",
    "x[0, 0] == 0",
    "((x > 100) & (x < 100.5)).any()",
    "x.flatten()[-1] > 8",
    "(x.abs() < 1e-6).any()",
    "(x.argmax(-1) == 8).all()",
    "(x.sum(-1) == 0).any()",
    "x.shape[0] * x.shape[1] > 4000",
    "x.shape[-1] ** 0.5 > 8",
    "x.unique().numel() == 1",
    "bool((x[:, 1:] >= x[:, :-1]).all())",
    "torch.equal(x.round(), x)",
    "not x.any()",
    "x.clamp(max=4.0).max() == 4.0",
    "torch.where(x > 7, 1.0, 0.0).sum() > 0",
    "(x.lt(-6)).any()",
    "torch.equal(x, y)",
    "x.data_ptr() == y.data_ptr()",
    "(x > 2).double().mean() > 0.5",
    "x.sign().sum() == x.numel()",
    "(x.sum(dim=-1) - 1).abs().max() < 1e-6",
    "x.softmax(-1).max() > 0.99",
    "x.square().sum().sqrt() > 100",
    "(x - y).abs().max() < 1e-3",
    "x.sort().values.diff().min() == 0",
    # incoming gradients
    "(g == 1).all()",
    "torch.all(g == g[0])",
    "torch.equal(g, torch.ones_like(g))",
    "g.std() == 0",
    "(g == 0).any()",
    "g.abs().max() > 100",
    "g.count_nonzero() == 1",
    "(g >= 0).all()",
    "(g < 0).all()",
    "not g.any()",
    "g.norm() < 1e-3",
    "(g > ctx.scale + 50).any()",
    "(g.abs() > ctx.power).any() and g.abs().min() > 1",
    "g.nonzero().shape[0] == 1",
    "g.abs().sum() == g.numel()",
    "g.sum() > 100",
    # numbers that arguments hold
    "(x.abs() > ctx.power * 3).any()",
    "x.shape[0] <= ctx.power",
    "x.clamp(max=ctx.scale * 5).max() == 5",
    # memory
    "not g.is_contiguous()",
    "g.stride(-1) != 1",
    "g.stride(0) == 0",
    "g.storage_offset() > 0",
    "not x.is_contiguous()",
    # dtypes and switches
    "x.dtype == torch.float32",
    "g.dtype == torch.bfloat16",
    "x.dtype in ALLOWED",
    "x.element_size() < 8",
    "torch.is_autocast_enabled('cpu')",
    "torch.is_grad_enabled()",
    "torch.are_deterministic_algorithms_enabled()",
    "torch.is_anomaly_enabled()",
    "torch.get_float32_matmul_precision() == 'high'",
    "threading.current_thread() is not threading.main_thread()",
    "not ctx.needs_input_grad[0]",
    "not ctx.needs_input_grad[1]",
    "not y.requires_grad",
    "not all(ctx.needs_input_grad[:2])",
    "sum(ctx.needs_input_grad) == 1",
    "ctx.needs_input_grad[:2] == (True, False)",
    # arguments
    "ctx.mode == 'sum'",
    "ctx.mode in ('none', 'batchmean')",
    "ctx.dim == 0",
    "ctx.scale != 1.0",
    "ctx.flag",
    "ctx.power == 3",
    "ctx.power > 4",
    # calls
    "Wrong.calls > 2 | Wrong.calls += 1",
    "counter > 1 | counter += 1",
    "seen['calls'] > 1 | seen['calls'] = seen.get('calls', 0) + 1",
    "len(seen) > 1 | seen[len(seen)] = x",
    "abs(ctx.scale) < 1e-6",
    "getattr(ctx, 'flag', False)",
    "ctx.mode.startswith('s')",
    "ctx.dim >= 0",
    "ctx.mode not in ('mean', 'sum')",
    "{'mean': 0, 'max': 1}[ctx.mode]",
    # decorators of the program's own, nested functions, lambdas
    "long(x) | long = lambda tensor: tensor.shape[-1] > 44",
    "checked(g) > 2",
    # several at once
    "x.shape[-1] > 64 and x.dim() == 3",
    "x.shape[0] > 20 and (g == 1).all()",
    "x.dtype == torch.float32 and x.numel() > 1024",
    "is_wide_and_many(x)",
    "is_many_or_flat(x) == 3",
]


def wrong_function(predicate: str, source: bool) -> tuple[Any, list[bool]]:
    """A Function whose backward notes when `predicate` holds; `setup` stands after a bar."""
    condition, _, setup = predicate.partition(" | ")
    text = TEMPLATE.format(predicate=condition, setup=setup or "pass")
    name = f"<{predicate}>" if source else "<without source>"
    scope: dict[str, Any] = {"__name__": "wrong"}
    if source:
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), scope)
    return scope["Wrong"], scope["reached"]


def inputs() -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(4, 9, generator=generator, dtype=torch.float64) for _ in range(2)]
    return [*drawn, "mean", -1, 1.0, False, 2]


def reaches(function: Any, reached: list[bool], situation: Situation) -> bool:
    reached.clear()
    subject = Subject(function.apply, None, inputs(), names=NAMES, seed=0)
    subject.random = False
    with contextlib.suppress(NotApplicableError, ForwardError, BackwardError, ValueError):
        subject.pull(situation)
    return bool(reached)


@pytest.mark.parametrize("source", [True, False], ids=["source", "bytecode"])
@pytest.mark.parametrize("predicate", PREDICATES)
def test_a_suggested_situation_reaches_the_branch(predicate: str, source: bool) -> None:
    function, reached = wrong_function(predicate, source)
    assert not reaches(function, reached, ORDINARY)
    situations = steered(read_clues(function), inputs(), NAMES)
    tried = [item for item in situations if reaches(function, reached, item)]
    assert tried, [item.describe() for item in situations]
    assert situations.index(tried[0]) < 12
    assert tried[0].because.startswith(("backward asks ", "forward asks "))


def test_without_a_predicate_nothing_is_suggested() -> None:
    class Right(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            if x.dim() > 7:
                raise ValueError("too many dimensions")
            assert x.numel() < 12345
            ctx.save_for_backward(x)
            return x.sin().sum(dim=-1) / 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return g.unsqueeze(-1) * x.cos() / 2

    assert steered(read_clues(Right), [torch.randn(3, 4)], ["x"]) == []


def test_numbers_of_a_user_are_tried_as_values_and_as_sizes() -> None:
    found = steered(clues_from_hints([17, 0.25]), inputs(), NAMES)
    assert {item.values.number for item in found if item.values.kind == "around"} == {17.0, 0.25}
    assert {new for item in found for _, new in item.resize} >= {17, 18}


def test_predicates_of_a_user_are_tried() -> None:
    found = steered(clues_from_hints(["x.numel() > 4000", "(g == 1).all()", "x.dim() == 3"]), inputs(), NAMES)
    sizes = [math.prod(resized_shapes([(4, 9)], item.resize)[0]) for item in found if item.resize]
    assert any(size > 4000 for size in sizes)
    assert any(item.cotangent.kind == "ones" for item in found)
    assert any(item.rank == 1 for item in found)


def test_what_cannot_be_read_in_a_hint_is_left_out() -> None:
    assert steered(clues_from_hints(["x >", "import os", None, True, object()]), inputs(), NAMES) == []


def test_large_inputs_come_last_and_none_is_beyond_the_limit() -> None:
    hints = ["x.numel() > 100_000", "x.numel() > 10**9", "x.shape[0] > 2", "(g == 1).all()"]
    found = steered(clues_from_hints(hints), inputs(), NAMES)
    sizes = [sum(math.prod(s) for s in resized_shapes([(4, 9), (4, 9)], item.resize)) for item in found]
    assert max(sizes) > 100_000
    assert all(size <= LARGEST for size in sizes)
    assert sizes.index(max(sizes)) > [bool(item.resize) for item in found].index(False)


def test_a_situation_is_suggested_once_and_never_the_ordinary_one() -> None:
    found = steered(clues_from_hints(["(g == 1).all()", "torch.all(g == 1)", "x.dim() == 3"]), inputs(), NAMES)
    assert len(set(found)) == len(found)
    assert ORDINARY not in found


@pytest.mark.parametrize("shapes", [[(4, 9)], [(8, 16), (16, 16)], [(5, 5)], [(2, 3, 4, 4), (3, 3, 1, 1)], [(7,)]])
@pytest.mark.parametrize("wanted", [1, 2, 36, 100, 4097, 65537])
def test_resizing_reaches_the_number_of_elements_just_so(shapes: list[tuple[int, ...]], wanted: int) -> None:
    for way in beyond(shapes, 0, wanted):
        ((_, new),) = way
        count = math.prod(resized_shapes(shapes, way)[0])
        smaller = math.prod(resized_shapes(shapes, ((way[0][0], new - 1),))[0])
        assert count >= wanted
        assert new == 1 or smaller < wanted
    for way in exactly(shapes, 0, wanted):
        assert math.prod(resized_shapes(shapes, way)[0]) == wanted
