"""What rejected a call is solved for its arguments: the condition says what they should have been."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gradproof_probe.harness.arguments import Argument
from gradproof_probe.harness.frame_repair import frame_changes
from gradproof_probe.harness.guards import guard_changes
from gradproof_probe.harness.recipe import Built
from gradproof_probe.harness.scene import Scene
from gradproof_probe.harness.trial import Trial, attempt

# The functions are submitted code: what they do with their arguments is all that is known of them.


def check_is_tensor(value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        raise TypeError("no tensor")


def through_helper(one: Any, other: Any) -> Any:
    check_is_tensor(other)
    return one + other


def of_rank(image: Any) -> Any:
    if not (len(image.shape) == 4 and image.shape[1] == 9):
        raise ValueError("an image with nine channels, please")
    return image


def whole(label: Any) -> Any:
    assert label.dtype == torch.int64
    return label


def one_of(x: Any, mode: Any) -> Any:
    if mode not in ("sum", "largest"):
        raise ValueError("mode")
    return x


def same(left: Any, right: Any) -> Any:
    assert left.shape == right.shape, "they must be alike"
    return left


def by_key(sample: Any) -> Any:
    return sample["depth"] * 2


def by_attribute(graph: Any) -> Any:
    return graph.edge_weight * 2


def two_of_them(pair: Any) -> Any:
    first, second = pair
    return first + second


def probabilities(x: Any) -> Any:
    assert torch.all((x >= 0.0) & (x <= 1.0)), "use a sigmoid"
    return x.log()


def distribution(x: Any) -> Any:
    if not torch.allclose(x.sum(dim=-1), torch.ones_like(x[..., 0])):
        raise ValueError("must sum to one")
    return x


def above_zero(x: Any) -> Any:
    if x.min() <= 0:
        raise ValueError("must be positive")
    return x


def rotation(frame: Any) -> Any:
    assert torch.allclose(torch.det(frame), frame.new_tensor(1))
    return frame


def two_classes(scores: Any, label: Any) -> Any:
    assert (label < 2).all()
    return scores[label]


def two_or_four(*tensors: Any) -> Any:
    if len(tensors) == 2:
        return tensors[0] + tensors[1]
    if len(tensors) != 4:
        raise ValueError("two or four, please")
    return sum(tensors)


def searched(graph: Any) -> Any:
    nodes = graph.nodes
    return nodes * graph["weight"] if "weight" in graph else nodes * 2


def counted(start: Any, end: Any) -> Any:
    assert end >= start
    return torch.arange(end) - start


def concatenated(one: Any, other: Any) -> Any:
    joined = torch.cat((one, other, one - other), dim=1)
    return torch.nn.functional.conv2d(joined, torch.ones(4, 3, 1, 1))


def scene(function: Callable[..., Any], *arguments: Argument) -> Scene:
    """The call as it failed."""
    trial = run(function, arguments)
    assert trial.stage == "forward", "the call was meant to fail"
    assert trial.error is not None
    return Scene(trial.error, arguments, trial.args)


def run(function: Callable[..., Any], arguments: tuple[Argument, ...]) -> Trial:
    args = [eval(argument.value(), {"torch": torch}) for argument in arguments]
    return attempt(Built(function, args, {}, None), seed=0, seconds=10)


def spare(_name: str) -> None:
    return None


def solved(function: Callable[..., Any], *arguments: Argument) -> tuple[int, tuple[Argument, ...]]:
    """The first change with which the call passes, and how many came before it."""
    failed = scene(function, *arguments)
    changes = [*guard_changes(failed, spare), *frame_changes(failed, spare)]
    for count, (changed, _) in enumerate(changes):
        if run(function, changed).stage != "forward":
            return count, changed
    raise AssertionError([why for _, why in changes])


X = Argument("x", shape=(2, 5))


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (through_helper, (Argument("one", shape=(2, 5)), Argument("other", "literal", text="0.7"))),
        (whole, (Argument("label", shape=(4,)),)),
        (one_of, (X, Argument("mode", "literal", text="'mean'"))),
        (same, (Argument("left", shape=(2, 5)), Argument("right", shape=(3, 4)))),
        (by_key, (Argument("sample", shape=(2, 5)),)),
        (by_attribute, (Argument("graph", shape=(2, 5)),)),
        (two_of_them, (Argument("pair", shape=(3, 5)),)),
        (two_or_four, (X,)),
        (concatenated, (Argument("one", shape=(2, 4, 6, 5)), Argument("other", shape=(2, 4, 6, 5)))),
        (counted, (Argument("start", shape=(3, 5)), Argument("end", shape=(3, 5)))),
    ],
)
def test_a_change_that_passes_is_among_the_first(function: Callable[..., Any], arguments: tuple[Argument, ...]) -> None:
    before, changed = solved(function, *arguments)
    assert before < 3, changed


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (probabilities, (X,)),
        (distribution, (X,)),
        (above_zero, (X,)),
        (rotation, (Argument("frame", shape=(2, 3, 3)),)),
        (two_classes, (X, Argument("label", "int", shape=(9,), high=4))),
    ],
)
def test_values_that_a_guard_asks_for_are_drawn(function: Callable[..., Any], arguments: tuple[Argument, ...]) -> None:
    (changed, _), *_ = guard_changes(scene(function, *arguments), spare)
    assert run(function, changed).stage == "ok"
    assert [leaf.shape for leaf in changed] == [leaf.shape for leaf in arguments]


def test_one_condition_after_the_other_is_solved() -> None:
    failed = scene(of_rank, Argument("image", shape=(2, 5)))
    (step,) = [changed for changed, _ in guard_changes(failed, spare) if len(changed[0].shape) == 4][:1]
    _, changed = solved(of_rank, *step)
    assert changed[0].shape[1] == 9


def test_only_the_argument_that_a_helper_was_given_is_changed() -> None:
    one = Argument("one", "literal", text="0.5")
    _, changed = solved(through_helper, one, Argument("other", "literal", text="0.7"))
    assert changed[0] == one
    assert changed[1].is_tensor


def test_an_object_has_the_attribute_that_is_read() -> None:
    _, (graph,) = solved(by_attribute, Argument("graph", shape=(2, 5)))
    assert [item.name for item in graph.items] == ["edge_weight"]


def test_an_object_that_is_searched_by_key_answers_both_ways() -> None:
    graph = Argument("graph", "object", items=(Argument("nodes", shape=(2, 5)),))
    _, (changed,) = solved(searched, graph)
    made = eval(changed.value(), {"torch": torch})
    assert made.nodes is made["nodes"]
    assert not hasattr(made, "edges")


def test_an_object_grows_by_what_is_read_next() -> None:
    graph = Argument("graph", "object", items=(Argument("nodes", shape=(2, 5)),))
    (changed, _), *_ = frame_changes(scene(by_attribute, graph), spare)
    assert [item.name for item in changed[0].items] == ["nodes", "edge_weight"]


def test_a_function_that_is_none_by_default_and_called_is_given() -> None:
    def transformed(x: Any, transform: Any = None) -> Any:
        return transform(x)

    function = Argument("transform", "literal", text="torch.tanh", keyword=True)
    changes = frame_changes(scene(transformed, X), {"transform": function}.get)
    assert (X, function) in [changed for changed, _ in changes]
