"""What the rules on custom Functions say happens does happen in the installed torch: the right examples do not do "
"it."""

import pytest
import torch

from analyzer.registry import rule
from analyzer.rules.base import Documentation, Invalid
from tests.analyzer.test_autograd_rules import examples, function_class, inputs_of


def documentation(identifier: str) -> Documentation:
    found = rule(identifier)
    assert found is not None
    return found.documentation


def namespace(source: object) -> dict[str, object]:
    """What running one of our own examples defines."""
    space: dict[str, object] = {}
    exec(compile(str(source), "example.py", "exec"), space)
    return space


def leaf(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def second_derivative(function: type[torch.autograd.Function]) -> float:
    """Of `f(exp(x))` at 0.5, so that the graph holds more than the Function."""
    x = leaf(0.5)
    (first,) = torch.autograd.grad(function.apply(x.exp()).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return float(second)


def test_a_changed_gradient_changes_for_the_other_branch_too() -> None:
    def other_branch(source: str) -> list[float]:
        x, shared = leaf(1, 2), torch.ones(2, dtype=torch.float64)
        torch.autograd.backward([function_class(source).apply(x * 1, 3.0)], [shared])
        return shared.tolist()

    assert other_branch(documentation("GP306").faulty_example) == [3.0, 3.0]
    assert other_branch(documentation("GP306").right_example) == [1.0, 1.0]


def test_a_changed_saved_tensor_breaks_what_saved_it_before() -> None:
    def gradients(source: str) -> torch.Tensor:
        gate, up = leaf(1, 2), leaf(1, 1)
        function_class(source).apply(gate * 1, up.exp()).sum().backward()
        assert gate.grad is not None
        return gate.grad

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(documentation("GP326").faulty_example)
    assert gradients(documentation("GP326").right_example).tolist() == pytest.approx([2.71828, 2.71828], rel=1e-5)


@pytest.mark.parametrize(("identifier", "expected"), [("GP311", 16 * 2.718281828**2), ("GP321", 9 * 2.718281828**1.5)])
def test_the_second_derivative_is_wrong_in_silence(identifier: str, expected: float) -> None:
    text = documentation(identifier)
    assert second_derivative(function_class(text.right_example)) == pytest.approx(expected)
    assert second_derivative(function_class(text.faulty_example)) < 0.9 * expected


@pytest.mark.parametrize("identifier", ["GP311", "GP321"])
def test_once_differentiable_raises_in_backward_and_is_passed_by_in_autograd_grad(identifier: str) -> None:
    function = function_class(
        documentation(identifier).faulty_example.replace(
            "    def backward", "    @torch.autograd.function.once_differentiable\n    def backward"
        )
    )
    x = leaf(0.5)
    (first,) = torch.autograd.grad(function.apply(x.exp()).square().sum(), x, create_graph=True)
    torch.autograd.grad(first.sum(), x, retain_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_a_missing_gradient_leaves_the_parameter_without_one() -> None:
    x, weight = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2, requires_grad=True)
    function_class(documentation("GP304").faulty_example).apply(x, weight).sum().backward()
    assert (x.grad is None, weight.grad is None) == (False, True)


def test_swapped_gradients_go_to_the_other_input_in_silence() -> None:
    x, weight = leaf(2), leaf(5)
    function_class(documentation("GP305").faulty_example).apply(x, weight).sum().backward()
    assert (x.grad, weight.grad) == (torch.tensor([2.0]), torch.tensor([5.0]))


def test_a_dirty_input_that_is_not_returned_raises_on_every_call() -> None:
    with pytest.raises(RuntimeError, match="were not returned as output"):
        function_class(documentation("GP308").faulty_example).apply(leaf(1) * 1)


def test_an_unmarked_output_promises_a_gradient_that_it_does_not_have() -> None:
    for source, promised in (
        (documentation("GP309").faulty_example, True),
        (documentation("GP309").right_example, False),
    ):
        x = leaf(3)
        value, norm = function_class(source).apply(x)
        assert norm.requires_grad is promised
        (value.sum() + norm).backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2.0]


def test_a_missing_gradient_is_none_after_set_materialize_grads() -> None:
    first, _ = function_class(documentation("GP310").faulty_example).apply(leaf(1))
    with pytest.raises(TypeError, match="NoneType"):
        first.sum().backward()


@pytest.mark.parametrize("example", examples("GP313"))
def test_what_is_no_tensor_can_not_be_saved(example: Invalid) -> None:
    function = function_class(example.source)
    given: list[object] = [leaf(1, 2)]
    if "x, k" in str(example.source):
        given.append(2)
    with pytest.raises(TypeError):
        function.apply(*given).sum().backward()


LASTING = [
    example
    for example in examples("GP314")
    if "State()" not in str(example.source) and "Layer" not in str(example.source)
]


@pytest.mark.parametrize("example", LASTING)
def test_state_outside_of_the_context_belongs_to_the_last_call(example: Invalid) -> None:
    function = function_class(example.source)
    first, second = leaf(2), leaf(5)
    if "scale" in str(example.source):
        total = function.apply(first, 2.0) + function.apply(second, 10.0)
        wrong = 10.0
    else:
        total, wrong = function.apply(first) + function.apply(second), 10.0
    total.sum().backward()
    assert first.grad is not None
    assert second.grad is not None
    # A stack gives each call its own again, as long as the calls run backwards in order; all others give one for both.
    if "STACK" not in str(example.source):
        assert first.grad.tolist() == [wrong]


def test_a_function_whose_forward_takes_the_context_raises_under_a_transform() -> None:
    with pytest.raises(RuntimeError, match="setup_context"):
        namespace(documentation("GP316").faulty_example)["forces"](leaf(1))  # type: ignore[operator]
    forces = namespace(documentation("GP316").right_example)["forces"]
    assert forces(leaf(3).detach()).tolist() == [6.0]  # type: ignore[operator]


def test_a_compiled_transform_forgets_the_backward() -> None:
    forces = namespace(documentation("GP328").faulty_example)["forces"]
    x = torch.tensor([1.2, 3.4])
    assert forces(x).tolist() == [1.0, 1.0]  # type: ignore[operator]
    assert torch.compile(forces, backend="eager")(x).tolist() == [0.0, 0.0]  # type: ignore[arg-type]


def test_a_view_of_an_expanded_gradient_raises() -> None:
    def run(source: str) -> None:
        x = torch.ones(2, 3, 4, requires_grad=True)
        function_class(source).apply(x).sum(1).square().sum().backward()

    with pytest.raises(RuntimeError, match="view size is not compatible"):
        run(documentation("GP317").faulty_example)
    run(documentation("GP317").right_example)


def test_custom_bwd_without_custom_fwd_raises_in_backward() -> None:
    x = torch.ones(2, 2, requires_grad=True)
    result = function_class(documentation("GP318").faulty_example).apply(x, x).sum()
    with pytest.raises(AttributeError, match="_fwd_used_autocast"):
        result.backward()


def test_a_function_is_not_called() -> None:
    with pytest.raises(RuntimeError, match="Legacy autograd function"):
        namespace(documentation("GP319").faulty_example)["double"](leaf(1))  # type: ignore[operator]


def test_a_hook_that_writes_changes_the_gradient_of_others() -> None:
    for source, left in ((documentation("GP320").faulty_example, 0.5), (documentation("GP320").right_example, 1.0)):
        x, shared = leaf(1), torch.ones(1, dtype=torch.float64)
        torch.autograd.backward([namespace(source)["scale"](x)], [shared])  # type: ignore[operator]
        assert shared.tolist() == [left]
        assert x.grad is not None
        assert x.grad.tolist() == [1.0]


@pytest.mark.parametrize("example", examples("GP322"))
def test_a_name_that_means_nothing_raises(example: Invalid) -> None:
    function = function_class(example.source)
    given = inputs_of(function)
    with pytest.raises((NameError, TypeError, AttributeError)):
        function.apply(*given).sum().backward()


def test_a_gradient_that_was_not_assigned_raises() -> None:
    function = function_class(documentation("GP323").faulty_example)
    with pytest.raises(UnboundLocalError):
        function.apply(leaf(1), leaf(1).detach()).sum().backward()


def test_without_the_incoming_gradient_a_factor_has_no_effect() -> None:
    for source, expected in (
        (documentation("GP324").faulty_example, 12.0),
        (documentation("GP324").right_example, 120.0),
    ):
        x = leaf(2)
        (10 * function_class(source).apply(x)).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [expected]


def test_a_ratio_of_exponentials_is_nan_where_the_sigmoid_is_zero() -> None:
    for source, is_nan in (
        (documentation("GP325").faulty_example, True),
        (documentation("GP325").right_example, False),
    ):
        x = torch.tensor([-4.0, 0.1], requires_grad=True)
        function_class(source).apply(x).sum().backward()
        assert x.grad is not None
        assert x.grad.isnan().tolist() == [is_nan, False]
        assert float(x.grad[1]) == pytest.approx(0.0701, abs=1e-3)


@pytest.mark.parametrize("example", examples("GP327"))
def test_backward_is_called_with_one_gradient_for_each_output(example: Invalid) -> None:
    results = function_class(example.source).apply(leaf(1, 2))
    first = results[0] if isinstance(results, tuple) else results
    with pytest.raises(TypeError, match="positional argument"):
        first.sum().backward()


def test_needs_input_grad_does_not_count_the_context() -> None:
    with pytest.raises(IndexError):
        function_class(documentation("GP329").faulty_example).apply(leaf(1), leaf(2)).sum().backward()


def test_what_is_returned_in_a_list_has_no_gradient() -> None:
    assert [part.requires_grad for part in function_class(documentation("GP330").faulty_example).apply(leaf(1))] == [
        False
    ] * 2
    assert [part.requires_grad for part in function_class(documentation("GP330").right_example).apply(leaf(1))] == [
        True
    ] * 2


@pytest.mark.parametrize("example", examples("GP331"))
def test_an_attribute_that_nobody_sets_raises_in_backward(example: Invalid) -> None:
    function = function_class(example.source)
    given: list[object] = [leaf(1, 2), 2][: 2 if "k" in function.forward.__code__.co_varnames else 1]
    result = function.apply(*given).sum()
    with pytest.raises(AttributeError):
        result.backward()


@pytest.mark.parametrize("example", examples("GP332"))
def test_a_gradient_of_what_was_not_recorded_raises(example: Invalid) -> None:
    function = function_class(example.source)
    with pytest.raises(RuntimeError, match="does not require grad"):
        function.apply(leaf(1, 2)).sum().backward()
