"""A harness is believed when independent routes agree on it and it holds at other sizes; the grade says which."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from gradproof_probe.harness.evidence import Evidence, shape_in
from gradproof_probe.harness.recipe import Recipe
from gradproof_probe.harness.rewriting import with_shapes, written_tensors
from gradproof_probe.harness.validation import validate
from gradproof_probe.importing import Resolved
from gradproof_probe.request import Target

from tests.probe.conftest import entry, speak

SOURCE = '''
import torch
import torch.nn.functional as F
from torch import nn


class Attend(nn.Module):
    """Unpacks three axes, and hands them to a layer of 8 features: code and layers agree."""

    def __init__(self, dim):
        super().__init__()
        self.project = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        return self.project(x).softmax(dim=-1)


class Wide(nn.Module):
    """Any number of axes runs, and the layer says how wide the last one is."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 4)

    def forward(self, x):
        return self.inner(x)


class Square(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, image):
        b, c, h, w = image.shape
        return self.mix(image)


class Fixed(nn.Module):
    """Only one batch and one length run."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(2, 5, 8))

    def forward(self, x):
        b, n, d = x.shape
        assert (b, n, d) == (2, 5, 8)
        return x * 2 + self.bias


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        b, n, d = x.shape
        return self.weight * torch.ones_like(x)


def squared(x):
    return (x * x).sum()


def stopped(x):
    return x * 0.0


def logged(x):
    return x.log()


def pooled(x, reduction="mean"):
    """Sums up (B, N)."""
    if reduction == "mean":
        return x.mean()
    elif reduction == "sum":
        return x.sum()
    raise ValueError(reduction)


def traced(x):
    return torch.trace(x)


def rotated(x, angle):
    """Turns.

    Args:
        x: points, (B, N, 2)
        angle: one for each
    """
    return x.flip(-1) * angle


def written_otherwise(x):
    """Adds.

    Args:
        x (torch.Tensor): images (B, C, H, W)
    """
    return x + 1


def cross(x, memory):
    """Attends.

    Args:
        x: (B, N, D)
        memory: (B, M, D)
    """
    b, n, d = x.shape
    b, m, d = memory.shape
    return x @ memory.transpose(1, 2)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2
'''


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("validated")
    (root / "judged_layers.py").write_text(SOURCE)
    return root


@pytest.fixture
def judged(package: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`judged(name, inputs, constructor, …)`: the validated recipe."""
    monkeypatch.syspath_prepend(str(package))
    module = importlib.import_module("judged_layers")

    def judge(
        name: str,
        inputs: tuple[str, ...],
        constructor: str | None = None,
        *,
        routes: tuple[Evidence, ...] = (),
        **more: Any,
    ) -> Recipe:
        value = getattr(module, name)
        kind: Literal["module", "function", "autograd_function"] = "function"
        if isinstance(value, type):
            kind = "module" if issubclass(value, torch.nn.Module) else "autograd_function"
        target = Target(f"judged_layers:{name}", kind, "judged_layers.py", 1, "", "judged_layers", name)
        given = {"source": "synthesised", "grade": "C", "provenance": "", **more}
        recipe = Recipe(**given, constructor=constructor, inputs=inputs)
        resolved = Resolved(target, module, value)
        return validate(resolved, recipe, seed=0, deadline=time.monotonic() + 60, routes=routes)

    return judge


def test_code_and_layer_that_agree_make_grade_b(judged: Any) -> None:
    recipe = judged("Attend", ("torch.randn(2, 5, 8)",), "Attend(8)")
    assert recipe.grade == "B"
    assert "the layer that it goes into" in recipe.provenance
    assert "the code of the call" in recipe.provenance
    assert "axis 1 of 2 also as 3" in recipe.provenance


def test_a_free_number_of_axes_is_agreed_only_where_running_and_reading_say_so(judged: Any) -> None:
    assert judged("Wide", ("torch.randn(2, 5, 8)",), "Wide()").grade == "B"
    assert judged("squared", ("torch.randn(3, 8)",)).grade == "B"
    assert judged("Doubled", ("torch.randn(3, 8)",)).grade == "B"


def test_one_route_alone_stays_a_guess_and_a_second_from_the_search_settles_it(judged: Any) -> None:
    alone = judged("traced", ("torch.randn(3, 8)",))
    assert alone.grade == "C"
    assert "only no other number of axes runs speaks for the shape of x" in alone.provenance
    assert judged("traced", ("torch.randn(3, 8)",), routes=(Evidence("demand", "x", ranks=(2,)),)).grade == "B"
    against = judged("traced", ("torch.randn(3, 8)",), routes=(Evidence("demand", "x", ranks=(3,)),))
    assert against.grade == "C"


def test_sizes_that_the_author_writes_are_not_changed_to_tell_axes_apart(judged: Any) -> None:
    points, _ = judged("rotated", ("torch.randn(2, 5, 2)", "torch.randn(2, 5, 1)")).inputs
    assert points == "torch.randn(2, 5, 2)"


def test_what_the_author_writes_against_what_ran_keeps_it_a_guess(judged: Any) -> None:
    recipe = judged("written_otherwise", ("torch.randn(3, 8)",))
    assert recipe.grade == "C"
    assert "its documentation (its docstring) says otherwise of x" in recipe.provenance


@pytest.mark.parametrize(
    ("name", "inputs", "constructor", "words"),
    [
        ("Fixed", ("torch.randn(2, 5, 8)",), "Fixed()", "it runs at these sizes only"),
        ("Constant", ("torch.randn(2, 5, 8)",), "Constant()", "the output does not change with the input"),
        ("stopped", ("torch.randn(3, 8)",), None, "all gradients are zero"),
        ("logged", ("torch.randn(3, 8)",), None, "a value or a gradient is not finite"),
        ("squared", ("torch.arange(8.).pow(2)",), None, "no input is a tensor of a size that could be varied"),
    ],
)
def test_a_harness_that_does_not_hold_is_a_guess_and_says_why(
    judged: Any, name: str, inputs: tuple[str, ...], constructor: str | None, words: str
) -> None:
    recipe = judged(name, inputs, constructor)
    assert recipe.grade == "C"
    assert words in recipe.provenance


def test_equal_sizes_are_made_different_where_that_runs(judged: Any) -> None:
    (image,) = judged("Square", ("torch.randn(2, 3, 16, 16)",), "Square()").inputs
    (tensor,) = written_tensors([image])
    assert len(set(tensor.shape)) == 4
    sequence, memory = written_tensors(judged("cross", ("torch.randn(2, 5, 8)", "torch.randn(2, 5, 8)")).inputs)
    assert sequence.shape[1] != memory.shape[1]
    assert sequence.shape[::2] == memory.shape[::2]


@pytest.mark.parametrize(
    "given",
    [
        {"source": "declared", "grade": "A", "found_by": "declared"},
        {"source": "mined", "grade": "A", "found_by": "readme"},
    ],
)
def test_what_the_repository_gives_keeps_its_grade_and_its_sizes(judged: Any, given: dict[str, str]) -> None:
    recipe = judged("Square", ("torch.randn(1, 3, 16, 16)",), "Square()", **given)
    assert recipe.grade == "A"
    assert recipe.inputs == ("torch.randn(1, 3, 16, 16)",)


def test_a_call_recorded_in_a_parent_is_one_route_of_two(judged: Any) -> None:
    recorded = {"source": "mined", "grade": "A", "found_by": "parent"}
    assert judged("Attend", ("torch.randn(2, 5, 8)",), "Attend(8)", **recorded).grade == "B"
    assert judged("traced", ("torch.randn(3, 8)",), **recorded).grade == "B"
    assert judged("written_otherwise", ("torch.randn(3, 8)",), **recorded).grade == "C"


def test_other_values_of_mode_arguments_are_kept_if_they_run(judged: Any) -> None:
    variants = judged("pooled", ("torch.randn(3, 8)",)).variants
    assert [variant.option for variant in variants] == ["reduction='sum'"]
    assert variants[0].inputs == ("torch.randn(3, 8)", "reduction='sum'")


# ------------------------------------------------------------------------------------------------- written tensors


def test_shapes_are_found_and_changed_wherever_they_stand() -> None:
    inputs = (
        *("torch.randn(2, 3)", "mask=torch.ones((2, 5), dtype=torch.bool)", "[torch.rand(4), 'a']", "0.5"),
        "*(torch.randint(0, 7, (2,)),)",
    )
    found = written_tensors(inputs)
    assert [tensor.shape for tensor in found] == [(2, 3), (2, 5), (4,), (2,)]
    assert [tensor.is_float for tensor in found] == [True, False, True, False]
    changed = with_shapes(inputs, {(0, 0): (3, 3), (1, 0): (3, 5), (2, 0): (9,), (4, 0): ()})
    assert [tensor.shape for tensor in written_tensors(changed)] == [(3, 3), (3, 5), (9,), ()]
    assert changed[1].startswith("mask=")
    assert changed[3] == "0.5"


@pytest.mark.parametrize("expression", ["torch.randn(n, 2)", "torch.load('x')", "x", "1 +", "numpy.ones(3)"])
def test_what_is_not_made_of_constant_sizes_is_left_alone(expression: str) -> None:
    assert written_tensors([expression]) == []


@pytest.mark.parametrize(
    ("text", "axes", "is_open", "sizes"),
    [
        ("(torch.Tensor): images (B, C, H, W)", 4, False, ()),
        ("the points with shape :math:`(*, 3)`.", 1, True, ((-1, 3),)),
        ("an image [B x 3 x H x W]", 4, False, ((-3, 3),)),
        ("rgb image of shape `(B, 3, H, W)`", 4, False, ((-3, 3),)),
        ("(FloatTensor): n x num_classes", 2, False, ()),
        ("points of shape batch x n x 3", 3, False, ((-1, 3),)),
    ],
)
def test_shapes_in_words_are_read(text: str, axes: int, is_open: bool, sizes: tuple[Any, ...]) -> None:
    shape = shape_in(text)
    assert shape is not None
    assert (shape.axes, shape.is_open, shape.sizes) == (axes, is_open, sizes)


@pytest.mark.parametrize(
    "text",
    ["(float, optional): the rate", "a pair (int, int)", "the input", "default (None)", "moves the tensor x along y"],
)
def test_types_in_brackets_are_no_shapes(text: str) -> None:
    assert shape_in(text) is None


# ---------------------------------------------------------------------------------------------------------- its code


@pytest.mark.parametrize(
    ("name", "inputs", "constructor"),
    [
        ("Attend", ("torch.randn(2, 5, 8)",), "Attend(8)"),
        ("cross", ("torch.randn(2, 5, 8)", "memory=torch.randn(2, 6, 8)"), None),
        ("Doubled", ("F.relu(torch.randn(3, 8))",), None),
        ("squared", ("torch.stack([torch.randn(3) for each in range(2)])",), None),
    ],
)
def test_the_code_runs_by_itself_and_gives_what_the_harness_gave(
    judged: Any, package: Path, name: str, inputs: tuple[str, ...], constructor: str | None
) -> None:
    recipe = judged(name, inputs, constructor)
    assert recipe.code.count("\n") <= 20
    ast.parse(recipe.code)
    shown = recipe.code + "print(float(output.detach().sum()))\n"
    done = subprocess.run([sys.executable, "-c", shown], cwd=package, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    exec(shown.replace("print", "total = "), names)
    assert float(done.stdout) == pytest.approx(names["total"])


def test_a_harness_declared_as_it_was_shown_is_the_same_harness(package: Path) -> None:
    """Whatever it came from: what a report shows can be pasted into the configuration."""
    names = {"Attend": "module", "Wide": "module", "squared": "function", "Doubled": "autograd_function"}
    first = speak(package, [entry(kind, f"judged_layers:{name}", checks=()) for name, kind in names.items()])
    found = {name: first.harness(name) for name in names}
    again = speak(
        package,
        [
            entry(
                kind,
                f"judged_layers:{name}",
                checks=(),
                inputs=found[name]["inputs"],
                constructor=found[name]["constructor"],
            )
            for name, kind in names.items()
        ],
    )
    for name in names:
        declared = again.harness(name)
        assert declared["grade"] == "A"
        assert declared["source"] == "declared"
        for key in ("constructor", "inputs", "code", "variants"):
            assert declared[key] == found[name][key], name
