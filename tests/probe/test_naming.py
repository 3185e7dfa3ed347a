"""A wrong gradient gets the name of the slip that made it, with its numbers, and the line of backward that made it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from gradproof_probe.gradients.naming import Evidence, GradientPair, Named, name_cause
from gradproof_probe.gradients.naming.lines import gradient_line
from gradproof_probe.gradients.situations import ORDINARY, Cotangent, Situation, Values
from torch.nn import functional

Tensor = torch.Tensor
Backward = Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], Any]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + sum(shape)))


def evidence(
    forward: Callable[..., Any],
    backward: Backward,
    *inputs: Tensor,
    known: int | None = None,
    situation: Situation = ORDINARY,
    askable: bool = True,
) -> Evidence:
    """`backward(derivatives, inputs, outputs, cotangents)` returns what a wrong backward would."""
    values = [item.clone().requires_grad_() for item in inputs]
    result = forward(*values)
    outputs = result if isinstance(result, tuple) else (result,)
    generator = torch.Generator().manual_seed(7)
    cotangents = tuple(torch.randn(item.shape, dtype=item.dtype, generator=generator) for item in outputs)

    def pull_back(given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(outputs, values, given, retain_graph=True, materialize_grads=True)

    derivatives = pull_back(cotangents)
    with torch.no_grad():
        returned = backward(derivatives, [item.detach() for item in values], outputs, cotangents)
    pairs = []
    for number, (value, gradient, derivative) in enumerate(zip(values, returned, derivatives, strict=True)):
        reference = derivative.clone()
        if known is not None:
            order = torch.randperm(reference.numel(), generator=generator)
            reference.view(-1)[order[known:]] = math.nan
        name = "xwb"[number]
        pairs.append(GradientPair(name, "input", number, value.detach(), gradient.clone(), reference, 1e-14))
    detached = tuple(item.detach() for item in outputs)
    return Evidence(tuple(pairs), cotangents, detached, situation, pull_back if askable else None)


def named(forward: Callable[..., Any], backward: Backward, *inputs: Tensor, **more: Any) -> Named:
    return name_cause(evidence(forward, backward, *inputs, **more))


def spoiled(change: Callable[[Tensor], Tensor], forward: Callable[..., Any], *inputs: Tensor, **more: Any) -> Named:
    """The first gradient changed, the others right."""
    return named(forward, lambda right, *_: (change(right[0]), *right[1:]), *inputs, **more)


def layer_norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.layer_norm(x, (x.shape[-1],), weight)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x @ weight.T + bias


def wavy(x: Tensor) -> Tensor:
    """No formula that the rules know: only the pattern of the error can be named."""
    return torch.sin(x) * x.mean(-1, keepdim=True)


X = normal(6, 7)


# The same for every element


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (2.0, "2 times"),
        (0.5, "1/2"),
        (1 / 6, "1 / n for n = 6, the length of axis 0"),
        (7**-0.5, "1 / the root of n for n = 7"),
        (42.0, "n for n = 42, its number of elements"),
        (6 / 7, "(n - 1) / n for n = 7"),
        (math.log(2), "natural logarithm of 2"),
        (1.37, "1.37 times"),
    ],
)
def test_a_factor_is_told_with_what_it_may_stand_for(factor: float, said: str) -> None:
    found = spoiled(lambda gradient: factor * gradient, wavy, X)
    assert found.cause == "scaled_gradient"
    assert said in found.text
    assert found.numbers["ratio"] == pytest.approx(factor)


def test_signs_zeros_and_nan_are_told() -> None:
    assert spoiled(torch.neg, wavy, X).cause == "wrong_sign"
    assert spoiled(torch.zeros_like, wavy, X).cause == "missing_gradient"
    found = spoiled(lambda gradient: gradient.masked_fill(X > 1.5, math.nan), wavy, X)
    assert found.cause == "not_finite"
    assert found.numbers["elements"] == int((X > 1.5).sum())


def test_a_few_known_elements_are_enough_for_factors_and_zeros() -> None:
    assert spoiled(lambda gradient: gradient / 7, wavy, X, known=6).numbers["ratio"] == pytest.approx(1 / 7)
    assert spoiled(torch.zeros_like, wavy, X, known=6).cause == "missing_gradient"


def test_one_element_alone_proves_no_factor() -> None:
    found = spoiled(lambda gradient: gradient * 1.37, wavy, X, known=1)
    assert found.cause in {"scaled_gradient", "wrong_gradient"}
    assert "coordinates" not in found.numbers


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.bfloat16, "bfloat16"), (torch.float16, "float16"), (torch.float32, "float32")]
)
def test_rounding_is_told_with_its_type(dtype: torch.dtype, name: str) -> None:
    found = spoiled(lambda gradient: gradient.to(dtype).to(torch.float64), wavy, X)
    assert found.cause == "rounded"
    assert found.numbers["dtype"] == name


def test_whole_numbers_are_not_taken_for_rounded_ones() -> None:
    derivative = 100 + (37 * torch.arange(30, dtype=torch.float64)) % 101
    pair = GradientPair("x", "input", 0, normal(30), derivative + 1, derivative, 1e-14)
    assert name_cause(Evidence((pair,), (normal(30, seed=1),), (normal(30, seed=2),))).cause == "constant_offset"


def test_a_conjugate_and_a_lost_part_are_told() -> None:
    z, w = torch.complex(normal(4, 5), normal(4, 5, seed=1)), torch.complex(normal(4, 5, seed=2), normal(4, 5, seed=3))
    product = named(lambda a, b: a * b, lambda right, x, y, g: (g[0] * x[1], right[1]), z, w)
    assert product.cause == "missing_conjugate"
    assert "w" in product.text
    assert spoiled(torch.conj_physical, torch.exp, z).cause == "missing_conjugate"
    assert spoiled(lambda gradient: gradient.real + 0j, torch.exp, z).cause == "dropped_part"


# In a wrong place or order


def test_gradients_in_each_others_place_are_told() -> None:
    swap = named(lambda a, b: a * b, lambda right, *_: right[::-1], X, normal(6, 7, seed=3))
    assert swap.cause == "swapped_gradients"
    double = named(lambda a, b: a * b, lambda right, *_: (right[1], right[1]), X, normal(6, 7, seed=3))
    assert double.cause == "swapped_gradients"
    assert "x is the derivative for w" in double.text


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda gradient: gradient.T.reshape(6, 7), "transposed"),
        (lambda gradient: gradient.flip(-1), "flipped"),
        (lambda gradient: gradient.roll(1, 0), "shifted"),
        (lambda gradient: functional.pad(gradient[:, :-1], (1, 0)), "shifted"),
        (lambda gradient: gradient.sort(-1).values, "permuted"),
        (lambda gradient: gradient.sum(-1, keepdim=True).expand(6, 7), "wrong_reduction"),
    ],
)
def test_a_wrong_order_is_told(change: Callable[[Tensor], Tensor], cause: str) -> None:
    assert spoiled(change, wavy, X).cause == cause


# In some places


def change_at(index: Any, factor: float) -> Callable[[Tensor], Tensor]:
    def change(gradient: Tensor) -> Tensor:
        changed = gradient.clone()
        changed[index] = changed[index] * factor
        return changed

    return change


@pytest.mark.parametrize(
    ("index", "cause", "said"),
    [
        ((2, 3), "wrong_coordinates", "at [2, 3]"),
        ((-1, -1), "wrong_coordinates", "last element, [5, 6]"),
        ((slice(None), slice(4, None)), "wrong_tail", "from index 4 of axis 1"),
        (0, "wrong_block", "first slice of axis 0"),
        (-1, "wrong_tail", "last slice of axis 0"),
        ((slice(None), slice(1, None, 2)), "wrong_coordinates", "every second index of axis 1"),
        ((slice(1, 3), slice(2, 5)), "wrong_block", "block [1:3, 2:5]"),
    ],
)
def test_places_are_told_as_briefly_as_they_can_be(index: Any, cause: str, said: str) -> None:
    found = spoiled(change_at(index, 0.5), wavy, X)
    assert found.cause == cause
    assert said in found.text
    assert "0.5" in found.text


def test_a_flat_tail_is_told_with_its_start() -> None:
    found = spoiled(lambda g: torch.cat([g.reshape(-1)[:24], 0 * g.reshape(-1)[24:]]).reshape(6, 7), wavy, X)
    assert found.cause == "wrong_tail"
    assert found.numbers["from"] == 24
    assert "there it is zero" in found.text


def test_a_triangle_is_told() -> None:
    found = spoiled(torch.tril, wavy, normal(6, 6))
    assert found.cause == "wrong_block"
    assert "above the diagonal" in found.text


@pytest.mark.parametrize(
    ("condition", "said", "threshold"),
    [
        (lambda x: x <= -0.4, "x < ", -0.4),
        (lambda x: x > 0.4, "x > ", 0.4),
        (lambda x: x.abs() > 0.9, "|x| > ", 0.9),
    ],
)
def test_a_region_is_told_with_the_bracket_of_its_bound(
    condition: Callable[[Tensor], Tensor], said: str, threshold: float
) -> None:
    found = spoiled(lambda gradient: torch.where(condition(X), -gradient, gradient), wavy, X)
    assert found.cause == "wrong_region"
    assert said in found.text
    assert "wrong sign" in found.text
    low, high = found.numbers["bracket"]
    assert low <= threshold <= high


def test_exact_zeros_are_told_from_a_regular_pattern() -> None:
    x = normal(5, 6)
    x.view(-1)[::4] = 0
    found = spoiled(lambda gradient: torch.where(x == 0, 0 * gradient, gradient), lambda x: (x + 1) ** 2, x)
    assert found.cause == "wrong_region"
    assert "x is exactly 0" in found.text


def test_a_cut_gradient_is_told_with_the_cut() -> None:
    found = spoiled(lambda gradient: gradient.clamp(-0.25, 0.25), wavy, X)
    assert found.cause == "clipped"
    assert "±0.25" in found.text


def test_a_forgotten_one_hot_term_is_told() -> None:
    target = torch.tensor([0, 3, 1, 6, 2, 5])
    found = named(
        lambda x: functional.cross_entropy(x, target), lambda right, x, y, g: (g[0] * x[0].softmax(-1) / 6,), X
    )
    assert found.cause == "missing_term"
    assert "one-hot" in found.hint


# Formulas


@pytest.mark.parametrize(
    ("forward", "wrong", "cause", "said"),
    [
        (torch.tanh, lambda x, y, g: g * (1 - y), "missing_factor", "(1 + output)"),
        (torch.sigmoid, lambda x, y, g: g * y, "missing_factor", "(1 - output)"),
        (torch.exp, lambda x, y, g: g, "missing_factor", "output"),
        (lambda x: x**3, lambda x, y, g: 3 * g * x, "missing_factor", "x is missing"),
        (lambda x: 1 / x, lambda x, y, g: g / x**2, "wrong_sign", ""),
        (torch.sin, lambda x, y, g: g * torch.cos(x) ** 2, "extra_factor", "cos(x)"),
        (functional.silu, lambda x, y, g: g * torch.sigmoid(x), "missing_term", "sigmoid'(x)"),
        (functional.gelu, lambda x, y, g: g * torch.special.ndtr(x), "missing_term", "normal density"),
        (torch.exp, lambda x, y, g: y, "ignores_grad_output", "all ones"),
        (torch.exp, lambda x, y, g: g.mean() * y, "ignores_grad_output", "its mean"),
        (torch.exp, lambda x, y, g: g.sign() * y, "ignores_grad_output", "its sign"),
        (torch.exp, lambda x, y, g: g * y + 0.01 * x, "extra_term", "0.01 · x"),
        (torch.exp, lambda x, y, g: g * y + 0.1, "constant_offset", "0.1"),
        (lambda x: functional.leaky_relu(x, 0.1), lambda x, y, g: g * (x > 0), "wrong_region", "x < 0"),
        (torch.log, lambda x, y, g: g / (x + 1e-6), "different_epsilon", "/ x²"),
    ],
)
def test_slips_in_the_chain_rule_are_told_by_their_formula(
    forward: Callable[[Tensor], Tensor], wrong: Callable[[Tensor, Tensor, Tensor], Tensor], cause: str, said: str
) -> None:
    x = X.abs() + 0.1 if forward is torch.log else X
    found = named(forward, lambda right, x, y, g: (wrong(x[0], y[0], g[0]),), x, askable=False)
    assert found.cause == cause
    assert said in found.text


def test_two_inputs_are_told_apart_in_a_formula() -> None:
    found = named(lambda a, b: a / b, lambda right, x, y, g: (right[0], -g[0] / x[1] ** 2), X, normal(6, 7, seed=4) + 4)
    assert found.cause == "missing_factor"
    assert "for w" in found.text
    assert "the factor x is missing" in found.text
    assert found.numbers["right"] == ["x"]


def rows_normalised(
    mean: float = 1.0, variance: float = 1.0, weight: bool = True
) -> Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], Any]:
    def backward(
        right: Sequence[Tensor], inputs: Sequence[Tensor], outputs: Sequence[Tensor], incoming: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        x, scale = inputs
        deviation = (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        standard = (x - x.mean(-1, keepdim=True)) / deviation
        g = incoming[0] * scale if weight else incoming[0]
        inner = g - mean * g.mean(-1, keepdim=True) - variance * standard * (g * standard).mean(-1, keepdim=True)
        return inner / deviation, right[1]

    return backward


def test_terms_of_a_normalisation_are_told_by_their_axis() -> None:
    inputs = X, normal(7)
    for backward in (rows_normalised(mean=0), rows_normalised(variance=0), rows_normalised(mean=0, variance=0)):
        found = named(layer_norm, backward, *inputs)
        assert found.cause == "missing_term"
        assert "axis 1" in found.text
    both = named(layer_norm, rows_normalised(mean=0, variance=0), *inputs)
    assert "of the mean and of the variance" in both.hint
    unweighted = named(layer_norm, rows_normalised(weight=False), *inputs)
    assert unweighted.cause == "wrong_formula"
    assert "grad_output · w" in unweighted.text


def test_the_term_that_softmax_subtracts_is_told() -> None:
    found = named(lambda x: x.softmax(-1), lambda right, x, y, g: (y[0] * g[0],), X)
    assert found.cause == "missing_term"
    assert "output" in found.text


def test_products_of_matrices_stand_side_by_side() -> None:
    a, b = normal(6, 6), normal(6, 6, seed=2)
    found = named(lambda x, w: x @ w, lambda right, x, y, g: (g[0] @ x[1], right[1]), a, b)
    assert found.cause == "transposed"
    assert "grad_output @ w, the derivative is grad_output @ wᵀ" in found.text


def test_reductions_of_a_bias_are_told() -> None:
    inputs = X, normal(5, 7), normal(5)
    mean = named(linear, lambda right, x, y, g: (*right[:2], g[0].mean(0)), *inputs)
    assert mean.cause == "scaled_gradient"
    assert "1 / n for n = 6" in mean.text
    first = named(linear, lambda right, x, y, g: (*right[:2], g[0][0]), *inputs)
    assert first.cause == "wrong_reduction"
    assert "first" in first.text


def test_a_running_sum_in_the_wrong_direction_is_told() -> None:
    found = named(lambda x: x.cumsum(-1), lambda right, x, y, g: (g[0].cumsum(-1),), X)
    assert found.cause == "wrong_reduction"
    assert "from the end" in found.text


def test_an_output_whose_gradient_is_not_used_is_told() -> None:
    found = named(lambda x: (x.sin(), (x @ x.T).exp().sum(1)), lambda right, x, y, g: (g[0] * x[0].cos(),), X)
    assert found.cause == "missing_term"
    assert "output 1" in found.text


def test_an_incoming_gradient_taken_for_ones_is_told_whatever_the_function_is() -> None:
    def backward(right: Any, inputs: Any, outputs: Any, incoming: Any) -> Any:
        with torch.enable_grad():
            x = inputs[0].clone().requires_grad_()
            return torch.autograd.grad(wavy(x).sum(), x)

    found = named(wavy, backward, X)
    assert found.cause == "ignores_grad_output"
    assert "all ones" in found.text


def test_a_constant_is_told_from_an_epsilon_by_differences_with_their_error() -> None:
    exact = evidence(torch.exp, lambda right, *_: (right[0] + 1e-3,), X, askable=False)
    (pair,) = exact.pairs
    measured = pair.reference + 1e-9 * normal(6, 7, seed=60)
    blurred = GradientPair("x", "input", 0, pair.value, pair.analytic, measured, 1e-8)
    assert name_cause(Evidence((blurred,), exact.cotangents, exact.outputs)).cause == "constant_offset"


def test_what_fits_nothing_is_told_by_its_worst_element() -> None:
    found = named(wavy, lambda right, *_: (right[0] + 0.1 * normal(6, 7, seed=50),), X)
    assert found.cause == "wrong_gradient"
    index = tuple(found.numbers["index"])
    assert f"{list(index)}" in found.text


@pytest.mark.parametrize("shape", [(), (1,), (2,), (0, 3), (1, 1, 1), (2, 1, 3, 1, 2)])
def test_any_shape_gets_an_answer(shape: tuple[int, ...]) -> None:
    for change in (torch.neg, lambda g: g * 1.1 + 0.2, torch.zeros_like, lambda g: g.abs() ** 0.5):
        assert spoiled(change, torch.exp, normal(*shape)).text


# Conditions


@pytest.mark.parametrize(
    ("situation", "cause"),
    [
        (Situation(cotangent=Cotangent(layout="transposed")), "grad_output_layout"),
        (Situation(input_layout="strided"), "input_layout"),
        (Situation(wanted=(0,)), "requires_grad_subset"),
        (Situation(dtype="float32"), "dtype_dependent"),
        (Situation(autocast="forward"), "autocast_dependent"),
        (Situation(alias=True), "aliasing"),
        (Situation(resize=((6, 7),)), "size_dependent"),
        (Situation(rank=1), "shape_dependent"),
        (Situation(values=Values("negative")), "value_dependent"),
        (Situation(cotangent=Cotangent("scaled", 1000.0)), "not_linear"),
        (Situation(cotangent=Cotangent("ones")), "grad_output_dependent"),
        (Situation(cotangent=Cotangent(outputs=(0,))), "unused_output"),
        (Situation(arguments=((1, 3),)), "argument_dependent"),
        (Situation(flags=("deterministic",)), "mode_dependent"),
        (Situation(sequence="interleaved"), "state_outside_ctx"),
        (Situation(sequence="input_written"), "stale_saved_value"),
        (Situation(sequence="second_backward"), "backward_not_repeatable"),
        (Situation(sequence="other_seed"), "random_backward"),
        (Situation(sequence="other_thread"), "state_outside_ctx"),
    ],
)
def test_what_fails_in_one_situation_only_is_named_by_it(situation: Situation, cause: str) -> None:
    found = spoiled(lambda gradient: 2 * gradient, wavy, X, situation=situation)
    assert found.cause == cause
    assert "2 times the derivative" in found.text
    assert situation.describe() in found.text
    assert found.hint


def test_among_values_the_region_is_the_cause() -> None:
    found = spoiled(
        lambda gradient: torch.where(X < -0.4, 0 * gradient, gradient),
        wavy,
        X,
        situation=Situation(values=Values("scaled", 3.0)),
    )
    assert found.cause == "wrong_region"


# Lines


class Tupled(torch.autograd.Function):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gx = None
        if ctx.needs_input_grad[0]:
            gx = grad * 2  # first
        gw, gb = grad * 3, grad * 4
        gb.mul_(2)  # third
        return gx, gw, gb, grad.sum()


class Helped(torch.autograd.Function):
    @staticmethod
    def _gradients(grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        return Helped._gradients(grad)  # handed over


class Branching(torch.autograd.Function):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        def inner() -> Tensor:
            return grad

        if grad.dim() == 2:
            return inner() * 2, None  # for matrices
        result = grad * 3
        return (
            result,
            None,
        )


def line_of(function: type, fragment: str) -> int:
    lines, start = inspect.getsourcelines(function)
    return start + next(number for number, line in enumerate(lines) if fragment in line)


@pytest.mark.parametrize(
    ("function", "position", "fragment"),
    [
        (Tupled, 0, "# first"),
        (Tupled, 1, "gw, gb = "),
        (Tupled, 2, "# third"),
        (Tupled, 3, "return gx"),
        (Helped, 1, "# handed over"),
        (Branching, 0, "result = grad * 3"),
    ],
)
def test_the_line_that_makes_a_gradient_is_where_its_value_was_last_assigned(
    function: type, position: int, fragment: str
) -> None:
    found = gradient_line(function, position)
    assert found == (inspect.getsourcefile(function), line_of(function, fragment))


def test_of_several_returns_the_executed_one_counts() -> None:
    line = line_of(Branching, "# for matrices")
    assert gradient_line(Branching, 0, {line}) == (inspect.getsourcefile(Branching), line)


def test_a_function_without_source_has_no_line() -> None:
    made = type("Made", (torch.autograd.Function,), {})
    exec("def backward(ctx, grad):\n    return grad", namespace := {})
    made.backward = staticmethod(namespace["backward"])
    assert gradient_line(made, 0) is None
