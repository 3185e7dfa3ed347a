"""Predicates and constants are read from code, whatever the code: what is compared with what, where; nothing is run."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from gradproof_probe.gradients.clues import Clue, Clues, clues_from_hints, read_clues

BLOCK = 128
SIZES = {"small": 16, "large": 48}
calls = 0
kept: dict[str, Any] = {}


def is_long(tensor: torch.Tensor) -> bool:
    return tensor.numel() > 70_000


def through(tensor: torch.Tensor) -> bool:
    return is_long(tensor)


class Base(torch.autograd.Function):
    limit = 60

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, mode: str = "mean") -> torch.Tensor:
        ctx.columns = x.shape[-1]
        ctx.mode = mode
        ctx.save_for_backward(x, weight)
        return x * weight


def function(backward: Any) -> type[torch.autograd.Function]:
    return type("Read", (Base,), {"backward": staticmethod(backward)})


def only(clues: Clues) -> Clue:
    assert len(clues.found) == 1, clues.found
    return clues.found[0]


def line_of(mark: str) -> int:
    lines = inspect.getsource(sys.modules[__name__]).splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(mark))


def test_a_comparison_tells_quantity_number_argument_and_place() -> None:
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        x, _ = ctx.saved_tensors
        count = x.numel()
        if count > 65536:  # PLACE
            g = g * 2
        return g, None, None

    clue = only(read_clues(function(backward)))
    assert (clue.quantity, clue.number, clue.relation, clue.argument) == ("numel", 65536.0, ">", "x")
    assert (clue.path, clue.line) == (__file__, line_of("# PLACE"))
    assert (clue.function, clue.text) == ("backward", "count > 65536")


def test_what_forward_leaves_on_the_context_is_known_in_backward() -> None:
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        if ctx.columns % 8 == 0:
            g = g * 2
        return (g if ctx.mode == "sum" else 2 * g), None, None

    size, mode = read_clues(function(backward)).found
    assert (size.quantity, size.argument, size.axis, size.number) == ("size", "x", -1, 8.0)
    assert size.relation == "multiple"
    assert (mode.quantity, mode.argument, mode.constant) == ("argument", "mode", "sum")


def test_setup_context_stands_for_the_first_half_of_forward() -> None:
    class Separate(torch.autograd.Function):
        @staticmethod
        def forward(x: torch.Tensor, flag: bool) -> torch.Tensor:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
            x, ctx.flag = inputs
            ctx.save_for_backward(x)

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> Any:
            (x,) = ctx.saved_tensors
            if ctx.flag and x.shape[0] == 1:
                return g, None
            return 2 * g, None

    flag, size = read_clues(Separate).found
    assert (flag.quantity, flag.argument) == ("argument", "flag")
    assert (size.quantity, size.argument, size.axis, size.number) == ("size", "x", 0, 1.0)
    assert size.within == (0,)


def test_constants_of_module_class_closure_and_dictionary_are_resolved() -> None:
    nearby = 33

    def backward(ctx: Any, g: torch.Tensor) -> Any:
        sizes = (g.shape[0] > BLOCK, g.shape[0] > Base.limit, g.shape[0] > nearby, g.shape[0] > SIZES["large"])
        return g * (g.shape[0] > 2 * BLOCK + 1), sizes, None

    assert [clue.number for clue in read_clues(function(backward)).found] == [128.0, 60.0, 33.0, 48.0, 257.0]


def test_helpers_of_the_same_package_are_followed_and_told_as_the_methods_own() -> None:
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g * through(g), None, None

    clue = only(read_clues(function(backward)))
    assert (clue.quantity, clue.number, clue.function) == ("numel", 70_000.0, "backward")
    assert clue.line == line_of("return tensor.numel() > 70_000")


def test_torch_itself_is_not_read() -> None:
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return F.multi_head_attention_forward(g), torch.stft(g, 4), None

    assert {clue.line for clue in read_clues(function(backward)).found} <= set(range(1, 2000))
    assert {clue.path for clue in read_clues(function(backward)).found} <= {__file__}


def test_decorators_are_read_and_looked_through() -> None:
    def wide_only(inner: Any) -> Any:
        @functools.wraps(inner)
        def wrapper(ctx: Any, *gradients: torch.Tensor) -> Any:
            if gradients[0].shape[-1] > 90:
                return None, None, None
            return inner(ctx, *gradients)

        return wrapper

    @wide_only
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g * bool((g == 1).all()), None, None

    found = read_clues(function(backward)).found
    assert [(clue.quantity, clue.number, clue.detail) for clue in found] == [
        ("size", 90.0, ""),
        ("cotangent", 1.0, "all ones"),
    ]


def test_lambdas_and_functions_without_source_are_read() -> None:
    short = lambda ctx, g: (g * (g.dim() == 3), None, None)  # noqa: E731
    assert only(read_clues(function(short))).quantity == "rank"
    scope: dict[str, Any] = {}
    exec("def backward(ctx, g):\n    return g * (ctx.columns > 77), None, None", scope)
    clue = only(read_clues(function(scope["backward"])))
    assert (clue.quantity, clue.number, clue.text, clue.line) == ("size", 77.0, "ctx.columns > 77", 2)


def test_a_counter_is_one_that_is_written_and_a_constant_is_not() -> None:
    def counting(ctx: Any, g: torch.Tensor) -> Any:
        global calls  # noqa: PLW0603
        calls += 1
        return (g if calls > 3 else 2 * g), None, None

    def caching(ctx: Any, g: torch.Tensor) -> Any:
        kept["last"] = g
        return (g if len(kept) > 1 else 2 * g), None, None

    def constant(ctx: Any, g: torch.Tensor) -> Any:
        return (g if BLOCK > 3 else 2 * g), None, None

    def refusing(ctx: Any, g: torch.Tensor) -> Any:
        global calls  # noqa: PLW0603
        calls += 1
        if calls > 3:
            raise RuntimeError
        return g, None, None

    assert only(read_clues(function(counting))).quantity == "count"
    assert only(read_clues(function(refusing))).quantity == "count"
    assert only(read_clues(function(caching))).quantity == "count"
    assert read_clues(function(constant)).found == ()


def test_what_only_refuses_inputs_is_no_clue() -> None:
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        if g.dim() > 4 or not g.is_contiguous():
            message = "unsupported"
            raise ValueError(message)
        assert g.numel() < 1000
        return g, None, None

    assert read_clues(function(backward)) == Clues()


def test_numbers_without_a_role_are_told_and_axes_exponents_and_halves_are_not() -> None:
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        """Not 7.25."""
        return 0.044715 * g.sum(dim=3) ** 5 + 0.5 * g[..., 6] - 1.0, None, None

    assert read_clues(function(backward)) == Clues((), (0.044715,))


@pytest.mark.parametrize(
    ("predicate", "quantity", "number", "detail"),
    [
        ("(2 * x + 1 > 7).any()", "value", 3.0, ""),
        ("(-x > 3).any()", "value", -3.0, ""),
        ("(x.exp() > 1).any()", "value", 0.0, ""),
        ("x.numel() // 64 == 4", "numel", 256.0, ""),
        ("len(x.shape) == 4", "rank", 4.0, ""),
        ("torch.all(g == 0)", "cotangent", 0.0, "all zeros"),
        ("(g == 1).all()", "cotangent", 1.0, "all ones"),
        ("g.norm() > 5", "cotangent", 5.0, "norm"),
        ("x.clamp(min=-2.5)", "value", -2.5, ""),
        ("x.split(48)", "size", 48.0, ""),
        ("torch.is_autocast_enabled()", "flag", None, "autocast"),
        ("x.requires_grad", "requires_grad", None, ""),
        ("ctx.needs_input_grad[1]", "requires_grad", 1.0, ""),
        ("x.stride(0) == 0", "stride", None, ""),
    ],
)
def test_the_number_is_that_of_the_quantity_itself(
    predicate: str, quantity: str, number: float | None, detail: str
) -> None:
    found = clues_from_hints([predicate]).found
    assert (quantity, number, detail) in [(clue.quantity, clue.number, clue.detail) for clue in found]


def test_reading_runs_nothing_of_what_it_reads() -> None:
    class Trap:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

        @property
        def limit(self) -> int:
            raise AssertionError

        def __gt__(self, other: object) -> bool:
            raise AssertionError

        def __bool__(self) -> bool:
            raise AssertionError

    trap = Trap()

    def backward(ctx: Any, g: torch.Tensor) -> Any:
        if trap and trap > 3 and trap.limit > 4 and trap.other() and trap[3] and trap + 2 > g.numel():
            return None
        return g, trap(g), g.shape[0] > trap

    read_clues(function(backward))


def test_a_function_that_has_been_read_is_not_read_again_unless_it_changes() -> None:
    cls: Any = function(lambda ctx, g: (g * (g.dim() == 3), None, None))
    first = read_clues(cls)
    assert read_clues(cls) is first
    cls.backward = staticmethod(lambda ctx, g: (g * (g.dim() == 5), None, None))
    assert only(read_clues(cls)).number == 5.0


def test_callables_are_read_through_the_functions_that_they_apply() -> None:
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g * (ctx.columns > 70), None, None

    cls: Any = function(backward)
    clue = only(read_clues(lambda first, second: cls.apply(first, second, "sum")))
    assert (clue.quantity, clue.argument, clue.number) == ("size", "first", 70.0)
    assert read_clues(cls.apply) == read_clues(cls)


@pytest.mark.parametrize("odd", [len, print, int, object(), None, torch.relu, functools.partial(len), torch.nn.ReLU()])
def test_what_has_no_python_code_tells_nothing(odd: Any) -> None:
    assert read_clues(odd).found == ()


def test_endless_recursion_and_long_code_end() -> None:
    def again(tensor: torch.Tensor, depth: int) -> Any:
        return again(again(tensor, depth + 1), depth) if tensor.dim() == 6 else again(tensor, depth)

    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return again(g, 0), None, None

    assert 6.0 in {clue.number for clue in read_clues(function(backward)).found}
    scope: dict[str, Any] = {}
    exec("def long(x):\n" + "".join(f"    if x.numel() == {n}: x = x + {n}\n" for n in range(3000)), scope)
    assert read_clues(scope["long"]).found


def test_every_function_of_large_modules_can_be_read() -> None:
    modules = [functools, inspect, torch.nn.functional, torch.autograd.function, torch.autograd.gradcheck]
    for module in modules:
        for value in list(vars(module).values()):
            if callable(value):
                found = read_clues(value)
                assert all(clue.path and clue.line > 0 for clue in found.found), value
