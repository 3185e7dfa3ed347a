"""What is read out of the methods of a custom Function: whose memory a name shares, what a value is computed from."""

import ast

import pytest

from analyzer.autograd_functions import AutogradFunction, autograd_functions
from analyzer.context import FileContext
from analyzer.function_memory import Memory, Role
from analyzer.function_sources import SourceFinder
from analyzer.function_transforms import reached, transforms
from analyzer.gradient_returns import end_is_reached
from analyzer.rules.autograd_examples import combined
from analyzer.source import parse
from analyzer.visible_names import VisibleNames


def file_of(source: str) -> FileContext:
    return FileContext(path="package/layers.py", module="package.layers", text=source, tree=parse(source))


def function_of(forward: str, backward: str, inputs: str = "x, w", gradients: str = "grad") -> AutogradFunction:
    (function,) = autograd_functions(file_of(combined(forward, backward, inputs, gradients)))
    return function


def returned(function: AutogradFunction, method: str) -> ast.expr:
    node = function.forward if method == "forward" else function.backward
    assert node is not None
    value = function.file.returns_of(node)[-1].value
    assert value is not None
    return value


@pytest.mark.parametrize(
    ("backward", "role", "certain"),
    [
        ("return grad", Role.GRADIENT, True),
        ("return grad.view(-1)[0:2].T", Role.GRADIENT, True),
        ("g = grad.mul_(2)\nreturn g", Role.GRADIENT, True),
        ("return grad.contiguous()", Role.GRADIENT, False),
        ("g = grad.clone()\nif ctx.flag:\n    g = grad\nreturn g", Role.GRADIENT, False),
        ("return grad if ctx.flag else grad * 2", Role.GRADIENT, False),
        ("(x,) = ctx.saved_tensors\nreturn x.detach()", Role.SAVED, True),
        ("kept = ctx.saved_tensors\nx = kept[1]\nreturn x", Role.SAVED, True),
        ("return ctx.saved_tensors[0].data", Role.SAVED, True),
        ("first, second = grad.chunk(2)\nreturn second", Role.GRADIENT, True),
        ("for part in grad.split(2):\n    last = part\nreturn last", Role.GRADIENT, False),
    ],
)
def test_a_name_shares_the_memory_of_what_came_in(backward: str, role: Role, certain: bool) -> None:
    function = function_of("return x * w", backward)
    assert function.backward is not None
    origin = Memory(function, function.backward).origin(returned(function, "backward"))
    assert origin is not None
    assert (origin.role, origin.certain) == (role, certain)


@pytest.mark.parametrize(
    "backward",
    [
        "return grad * 1",
        "return grad.clone()",
        "return grad[grad > 0]",
        "return grad[[0, 1]]",
        "grad = grad + 1\nreturn grad.view(-1)",
        "return ctx.scale",
        "return torch.empty_like(grad)",
        "def inner(grad):\n    return grad\nreturn inner(grad)",
    ],
)
def test_what_is_made_anew_shares_no_memory(backward: str) -> None:
    function = function_of("return x * w", backward)
    assert function.backward is not None
    assert Memory(function, function.backward).origin(returned(function, "backward")) is None


@pytest.mark.parametrize(
    ("forward", "certain", "possible"),
    [
        ("return x * w", "xw", ""),
        ("y = x.exp()\ny += w\nreturn y", "xw", ""),
        ("return (x > 0) * w", "w", ""),
        ("return x.shape[0] * w", "w", ""),
        ("return torch.round(x) + w.detach()", "", ""),
        ("return torch.where(x, w, 0)", "w", ""),
        ("return w.masked_fill(x, 0)", "w", ""),
        ("return torch.gather(w, 1, x)", "w", ""),
        ("return helper(x) + w", "w", "x"),
        ("return sum(t for t in (x, w))", "", "xw"),
        ("ctx.y = x * 2\nreturn ctx.y", "x", ""),
        ("if ctx.flag:\n    x = w\nreturn x", "xw", ""),
        ("x = torch.zeros(3)\nreturn x * w", "w", ""),
        ("y = torch.zeros(3)\nfor t in x:\n    y = y + t\nreturn y", "", "x"),
        ("y = x // w\nreturn y", "", ""),
    ],
)
def test_a_value_is_computed_from_these_inputs(forward: str, certain: str, possible: str) -> None:
    function = function_of(forward, "return grad, grad")
    assert function.forward is not None
    sources = SourceFinder(function.file, function.forward).sources(returned(function, "forward"))
    assert sources.certain - {"ctx"} == set(certain)
    assert sources.possible - sources.certain == set(possible)


def test_a_function_sees_its_own_names_those_around_it_and_those_of_the_module() -> None:
    source = (
        "import os.path as place\nfrom math import pi\nLIMIT = 3\n\n\ndef outer(scale):\n    class Inner:\n"
        "        hidden = 1\n\n"
        "        def method(self, x):\n            try:\n                y = [k for k in x]\n"
        "            except ValueError as e:\n"
        "                pass\n            return y\n"
    )
    file = file_of(source)
    visible = VisibleNames(file)
    (method,) = file.functions_by_name["method"]
    assert {"self", "x", "y", "k", "e"} <= visible.bound_in(method)
    around = visible.bound_around(method)
    assert {"place", "pi", "LIMIT", "outer", "scale", "Inner"} <= around
    assert "hidden" not in around
    assert not visible.open_ended


@pytest.mark.parametrize("source", ["from math import *\n", "exec('x = 1')\n", "globals()['x'] = 1\n"])
def test_names_from_elsewhere_leave_the_question_open(source: str) -> None:
    assert VisibleNames(file_of(source)).open_ended


def test_what_a_transform_differentiates_is_followed_through_methods_and_partials() -> None:
    source = (
        "import torch\nfrom functools import partial\n\n\nclass Field:\n    def energy(self, x):\n"
        "        return self.inner(x)\n\n"
        "    def inner(self, x):\n        return x\n\n    def forces(self, x):\n"
        "        return torch.vmap(torch.func.grad(partial(self.energy)))(x)\n"
    )
    file = file_of(source)
    found = [
        (name, [item.name for item in reached(file, given) if isinstance(item, ast.FunctionDef)])
        for _, name, given in transforms(file)
    ]
    assert sorted(found) == [("grad", ["energy", "inner"]), ("vmap", ["energy", "inner"])]


@pytest.mark.parametrize(
    ("body", "reached_end"),
    [
        ("return 1", False),
        ("raise ValueError", False),
        ("if a:\n    return 1", True),
        ("if a:\n    return 1\nelse:\n    return 2", False),
        ("if a:\n    return 1\nelse:\n    b = 2", True),
        ("with a:\n    return 1", False),
        ("while True:\n    pass", False),
        ("while a:\n    return 1", True),
        ("x = 1", True),
    ],
)
def test_the_end_of_a_block_is_reached_or_not(body: str, reached_end: bool) -> None:
    assert end_is_reached(ast.parse(body).body) is reached_end


def test_applications_are_found_through_a_name_that_was_given_apply() -> None:
    source = combined(
        "return x * 2",
        "return grad * 2",
        after="double = Op.apply\n\n\ndef f(x):\n    return double(x) + Op.apply(x)\n",
    )
    (function,) = autograd_functions(file_of(source))
    assert [ast.unparse(call) for call in function.applications] == ["double(x)", "Op.apply(x)"]
