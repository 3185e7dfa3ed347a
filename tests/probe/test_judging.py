"""Two gradients that differ are no fault yet: differences decide which is the derivative, and corners never count."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from gradproof_probe.gradients.judging import Judge, Ruled, Tolerance, differs, kinked
from gradproof_probe.gradients.oracle import seen_through, transparent
from gradproof_probe.gradients.situations import ORDINARY, Cotangent, Situation, Values
from gradproof_probe.gradients.subject import Subject
from gradproof_probe.gradients.trials import Trials

from tests.fixtures.probe import conditional, innocent_functions

Tensor = torch.Tensor
DOUBLE = Tolerance.of(torch.float64)
SINGLE = Tolerance.of(torch.float32)
ROUNDING = 1e-15
ROWS = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# Whether they differ


@pytest.mark.parametrize(
    ("analytic", "reference", "apart"),
    [
        (numbers(1, 2), numbers(1, 2), False),
        (numbers(1, 2), numbers(1, 2 + 1e-9), False),
        (numbers(1, 2), numbers(1, 2 + 1e-6), True),
        (numbers(1, 2), numbers(1, 2, 3), True),
        (None, None, False),
        (None, numbers(0, 0), False),
        (numbers(0, 0), None, False),
        (None, numbers(0, 1), True),
        (numbers(0, 1), None, True),
        (numbers(1, math.nan), numbers(1, 2), True),
        (numbers(1, 2), numbers(1, math.nan), False),
        (numbers(3, 2), numbers(1, math.nan), True),
        (numbers(1, math.inf), numbers(1, math.inf), False),
        (numbers(), numbers(), False),
    ],
)
def test_gradients_differ_by_more_than_rounding_where_both_are_known(
    analytic: Tensor | None, reference: Tensor | None, apart: bool
) -> None:
    assert differs([analytic], [reference], DOUBLE) == ([0] if apart else [])


def test_the_variables_that_differ_are_counted_from_zero() -> None:
    assert differs([numbers(1), numbers(2), numbers(3)], [numbers(1), numbers(4), None], DOUBLE) == [1, 2]


def test_what_is_nothing_beside_the_other_variables_is_rounding() -> None:
    tiny = [numbers(1e-13), numbers(5)]
    assert differs(tiny, [numbers(-1e-13), numbers(5)], DOUBLE) == []
    assert differs(tiny[:1], [numbers(-1e-13)], DOUBLE) == [0]
    assert differs(tiny[:1], [numbers(-1e-13)], DOUBLE, natural=1.0) == []


def test_float32_may_differ_by_what_it_rounds() -> None:
    pair = [numbers(1, 2)], [numbers(1, 2 + 1e-3)]
    assert differs(*pair, DOUBLE) == [0]
    assert differs(*pair, SINGLE) == []
    assert differs([numbers(1, 2)], [numbers(1, 2.1)], SINGLE) == [0]


# Which of them is the derivative


def ruled(
    call: Callable[..., Any], at: Tensor, analytic: Tensor, reference: Tensor, *, rounding: float = ROUNDING
) -> Ruled:
    """With ones pulled back."""
    subject = Subject(call, None, [at], names=["x"], seed=0)
    output = call(at)
    return Judge(subject, rounding).rule(ORDINARY, [analytic], [reference], [torch.ones_like(output)], [0])


def square(x: Tensor) -> Tensor:
    return x**2


def test_what_differences_contradict_is_wrong_and_what_they_confirm_is_right() -> None:
    derivative = 2 * ROWS
    assert ruled(square, ROWS, ROWS, derivative).ruling == "wrong"
    assert ruled(square, ROWS, derivative, ROWS).ruling == "right"
    assert ruled(square, ROWS, ROWS, -ROWS).ruling == "wrong", "both are wrong, and one of them was returned"


def test_one_wrong_coordinate_among_many_is_the_one_that_is_looked_at() -> None:
    spoiled = 2 * ROWS
    spoiled[1, 2] += 0.25
    found = ruled(square, ROWS, spoiled, 2 * ROWS)
    assert (found.ruling, found.ordinal, found.coordinate) == ("wrong", 0, 6)
    assert found.numeric == pytest.approx(2 * float(ROWS[1, 2]), abs=1e-8)
    assert abs(found.numeric - 2 * float(ROWS[1, 2])) <= 10 * found.error


def test_a_gradient_that_is_not_finite_where_the_derivative_is_is_wrong() -> None:
    spoiled = 2 * ROWS
    spoiled[0, 0] = math.nan
    assert ruled(square, ROWS, spoiled, 2 * ROWS).ruling == "wrong"


def test_of_complex_numbers_the_part_that_differs_is_moved() -> None:
    z = torch.complex(ROWS, ROWS.flip(0))

    def imaginary(z: Tensor) -> Tensor:
        return (z * z).imag

    leaf = z.clone().requires_grad_()
    (derivative,) = torch.autograd.grad(imaginary(leaf).sum(), leaf)
    assert ruled(imaginary, z, derivative.conj().resolve_conj(), derivative).ruling == "wrong"
    assert ruled(imaginary, z, derivative, derivative.conj().resolve_conj()).ruling == "right"


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("corner", torch.relu),
        ("ridge", lambda x: x.abs()),
        ("jump", lambda x: (x >= 0).to(x.dtype) * 3 + 0 * x),
        ("tie", lambda x: x.amax(-1)),
    ],
)
def test_where_one_sided_derivatives_differ_nothing_is_wrong(name: str, call: Callable[..., Any]) -> None:
    at = torch.zeros(2, 3, dtype=torch.float64)
    assert ruled(call, at, torch.ones_like(at), torch.zeros_like(at)).ruling == "kink"


def test_a_corner_does_not_hide_what_is_wrong_beside_it() -> None:
    at = numbers(0, 0, 1.5)
    spoiled = numbers(5, 5, 0.5)
    found = ruled(torch.relu, at, spoiled, numbers(0, 0, 1))
    assert (found.ruling, found.coordinate) == ("wrong", 2)


def test_where_differences_are_too_coarse_or_cannot_be_had_it_stays_unclear() -> None:
    close = 2 * ROWS * (1 + 1e-13)
    assert ruled(square, ROWS, close, 2 * ROWS).ruling == "unclear"

    def given_point_alone(x: Tensor) -> Tensor:
        if not torch.equal(x, ROWS):
            raise ValueError("no")
        return x**2

    assert ruled(given_point_alone, ROWS, ROWS, 2 * ROWS).ruling == "unclear"


def test_a_forward_that_rounds_is_moved_by_larger_steps() -> None:
    def narrow(x: Tensor) -> Tensor:
        return (x.float() ** 2).double()

    assert ruled(narrow, ROWS, ROWS, 2 * ROWS, rounding=2.5e-7).ruling == "wrong"
    assert ruled(narrow, ROWS, 2 * ROWS, ROWS, rounding=2.5e-7).ruling == "right"


@pytest.mark.parametrize(
    ("function", "corner"),
    [
        (abs, True),
        (lambda t: 3.0 * (t > 0), True),
        (lambda t: max(t, 0.0) + t**2, True),
        (lambda t: t**2, False),
        (lambda t: abs(t) ** 3, False),
        (math.exp, False),
        (lambda t: abs(t - 0.5), False),
    ],
)
def test_a_corner_is_told_from_curvature(function: Callable[[float], float], corner: bool) -> None:
    assert kinked(lambda t: (function(t), 1.0), 1.0, ROUNDING, 1.0) is corner


# Trials


def subject_of(function: Any, *args: Any) -> Subject:
    subject = Subject(function.apply, transparent(function), args, names=["x", "y"], seed=0)
    subject.random = False
    return subject


def trials(function: Any, *args: Any, oracle: bool = True, seconds: float = 60) -> Trials:
    subject = subject_of(function, *args)
    judge = Judge(subject, ROUNDING)
    ordinary = subject.pull(ORDINARY)
    return Trials(subject, judge, DOUBLE, oracle=oracle, ordinary=ordinary, deadline=time.monotonic() + seconds)


def test_of_a_combination_only_what_the_fault_needs_is_left() -> None:
    whole = Situation(values=Values("negative"), cotangent=Cotangent(layout="transposed"), sequence="repeated")
    for oracle in (True, False):
        fault = trials(conditional.ReadsMemoryInOrder, ROWS, oracle=oracle).first_fault([whole])
        assert fault is not None
        assert fault.situation == Situation(cotangent=Cotangent(layout="transposed"))


def test_a_combination_that_cannot_be_had_is_tried_in_its_parts() -> None:
    whole = Situation(input_layout="transposed", cotangent=Cotangent("negative"))
    trying = trials(conditional.LosesNegativeGradients, numbers(1.5).reshape(()))  # one number can't be transposed
    assert trying.attempt(whole) is None
    fault = trying.first_fault([whole])
    assert fault is not None
    assert fault.situation == Situation(cotangent=Cotangent("negative"))
    assert trying.count.not_applicable == 3, "twice the whole, and one part"


def test_a_combination_of_which_nothing_can_be_told_at_a_corner_is_tried_in_its_parts() -> None:
    class Rectifier(innocent_functions.RectifierWithOneAtZero):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clamp(min=0)  # to torch's mind of slope 1 at 0

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return torch.zeros_like(x) if (grads[0] < 0).all() else grads[0] * (x >= 0)

    corner = Situation(values=Values("constant", 0.0), cotangent=Cotangent("negative"))
    trying = trials(Rectifier, ROWS)
    fault = trying.first_fault([corner])
    assert trying.count.kinks == 1
    assert fault is not None
    assert fault.situation == Situation(cotangent=Cotangent("negative"))


def test_a_corner_is_counted_and_no_fault() -> None:
    trying = trials(innocent_functions.RectifierWithOneAtZero, ROWS)
    assert trying.first_fault([Situation(values=Values("constant", 0.0))]) is None
    assert trying.count.kinks == 1


@pytest.mark.parametrize("oracle", [True, False])
@pytest.mark.parametrize(
    ("function", "situation"),
    [
        (conditional.ReadsMemoryInOrder, Situation(cotangent=Cotangent(layout="transposed"))),
        (conditional.LosesNegativeGradients, Situation(cotangent=Cotangent("negative"))),
        (conditional.LosesTheSignOfLargeValues, Situation(values=Values("scaled", -9.0))),
        (conditional.LosesTheTail, Situation(resize=((4, 101),))),
        (conditional.KeepsItsInputOnTheClass, Situation(sequence="interleaved")),
    ],
)
def test_a_fault_is_found_with_an_oracle_and_by_differences_alone(
    function: Any, situation: Situation, oracle: bool
) -> None:
    fault = trials(function, ROWS, oracle=oracle).attempt(situation)
    assert fault is not None
    assert fault.situation == situation
    assert fault.ruled is not None
    assert fault.ruled.ruling == "wrong"
    assert trials(conditional.Square, ROWS, oracle=oracle).attempt(situation) is None


def test_an_error_counts_only_where_every_backward_has_to_cope() -> None:
    written = trials(conditional.SavesItsOutput, ROWS)
    assert written.first_fault([Situation(sequence="output_written")]) is None
    assert len(written.count.raised) == 1
    fault = trials(conditional.ViewsTheGradient, ROWS).first_fault(
        [Situation(cotangent=Cotangent(layout="transposed"))]
    )
    assert fault is not None
    assert fault.raised is not None


def test_nothing_is_begun_after_the_deadline() -> None:
    trying = trials(conditional.ReadsMemoryInOrder, ROWS, seconds=-1)
    assert trying.first_fault([Situation(cotangent=Cotangent(layout="transposed"))]) is None
    assert trying.stopped
    assert trying.count.tried == 0


def test_single_coordinates_are_differentiated_and_the_others_left_unknown() -> None:
    def sampled(rows: Tensor) -> tuple[Tensor, Tensor]:
        pull = subject_of(conditional.Square, rows).pull(ORDINARY)
        gradient = pull.gradients[0]
        assert gradient is not None
        return gradient, trials(conditional.Square, rows).sampled(ORDINARY, pull, 0, gradient)

    gradient, few = sampled(ROWS)
    assert torch.allclose(few, gradient, rtol=1e-7)
    gradient, many = sampled(ROWS.repeat(10, 10))
    known = torch.isfinite(many)
    assert 0 < int(known.sum()) < many.numel() // 10
    assert torch.allclose(many[known], gradient[known], rtol=1e-7)


@pytest.mark.parametrize(
    ("function", "agrees"), [(conditional.Square, True), (conditional.Doubled, False), (conditional.Huber, True)]
)
def test_one_random_direction_tells_right_from_wrong(function: Any, agrees: bool) -> None:
    pull = subject_of(function, ROWS).pull(ORDINARY)
    assert trials(function, ROWS).along_directions(ORDINARY, pull) is agrees


# The oracle


def through(function: Any, *args: Any) -> Sequence[Tensor | None]:
    leaves = [item.clone().requires_grad_() if torch.is_floating_point(item) else item for item in args]
    output = transparent(function)(*leaves)
    first = output[0] if isinstance(output, tuple) else output
    return torch.autograd.grad(first.sum(), [item for item in leaves if item.requires_grad], allow_unused=True)


def test_seen_through_a_function_has_the_gradient_of_its_forward() -> None:
    (found,) = through(conditional.Doubled, ROWS)
    assert found is not None
    assert torch.allclose(found, 2 * ROWS)


def test_seen_through_a_separate_context_is_given_as_torch_gives_it() -> None:
    leaf = ROWS.clone().requires_grad_()
    output = transparent(innocent_functions.SeparateContext)(leaf, 3)
    (found,) = torch.autograd.grad(output.sum(), leaf)
    assert torch.allclose(found, 3 * ROWS**2)


@pytest.mark.parametrize("name", ["ValuesAndPlaces", "SeparateContextThatMarks"])
def test_seen_through_an_output_that_is_declared_so_has_no_gradient(name: str) -> None:
    differentiable, declared = transparent(getattr(innocent_functions, name))(ROWS.clone().requires_grad_())
    assert differentiable.requires_grad
    assert not declared.requires_grad


def test_functions_are_seen_through_only_as_long_as_asked() -> None:
    own, inherited = conditional.Doubled.__dict__.get("apply"), conditional.Doubled.apply
    leaf = ROWS.clone().requires_grad_()
    with seen_through([conditional.Doubled]):
        (found,) = torch.autograd.grad(conditional.Doubled.apply(leaf).sum(), leaf)
        assert torch.allclose(found, 2 * ROWS)
    assert conditional.Doubled.__dict__.get("apply") is own
    assert conditional.Doubled.apply == inherited
    (found,) = torch.autograd.grad(conditional.Doubled.apply(leaf).sum(), leaf)
    assert torch.allclose(found, ROWS)
