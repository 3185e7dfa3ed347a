"""Custom Functions that are used otherwise than by `apply` (GP319)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from analyzer.autograd_functions import AutogradFunction, autograd_functions
from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.rules.autograd_examples import combined
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import dotted_name

_TEST_FILE = re.compile(r"(^|[/_])(tests?|conftest|testing)([/_.]|$)")


class FunctionWithoutApply(Rule):
    """A custom Function is called, or its forward, instead of `apply`."""

    id = "GP319"
    name = "function-without-apply"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    triggers = ("Function",)
    documentation = Documentation(
        what_it_does=(
            "Finds `MyFunction()(x)`, `MyFunction(x)`, and a call of `MyFunction.forward` outside of a Function, for "
            "the "
            "custom Functions of the same file. A call of `forward` under a condition, where no gradient is wanted, "
            "is a "
            "note; tests are left alone."
        ),
        why_is_this_bad=(
            "`MyFunction()(x)` raises `Legacy autograd function with non-static forward method is deprecated`. "
            "`MyFunction(x)` makes an object and no tensor. `MyFunction.forward(ctx, x)` computes the right value, but "
            "autograd differentiates the operations inside and never calls the hand-written backward."
        ),
        faulty_example=combined("return x * 2", "return grad * 2", after="def double(x):\n    return Op()(x)\n"),
        right_example=combined("return x * 2", "return grad * 2", after="def double(x):\n    return Op.apply(x)\n"),
        fix_safety="Unsafe: calls `apply`, so that the hand-written backward is used, which it was not before.",
    )
    valid = (
        combined("return x * 2", "return grad * 2", after="double = Op.apply\n\n\ndef f(x):\n    return double(x)\n"),
        combined("return x * 2", "return Op.apply(grad)"),
        combined("return x * 2", "return Op.forward(ctx, grad)"),
        combined("return x * 2", "return grad * 2", after="def f(x):\n    return Op().apply(x)\n"),
        combined("return x * 2", "return grad * 2", after="def f(x):\n    return isinstance(x, Op)\n"),
        combined("return x * 2", "return grad * 2").replace(
            "class Op(Function):\n", "class Op(Function):\n    def __new__(cls, x):\n        return cls.apply(x)\n\n"
        )
        + "\n\ndef f(x):\n    return Op(x)\n",
        "import torch\n\n\nclass Op(torch.nn.Module):\n    def forward(self, x):\n        return x\n\n\ny = Op()(1)\n",
    )
    invalid = (
        Invalid(combined("return x * 2", "return grad * 2", after="def f(x):\n    return Op()(x)\n"), (17,)),
        Invalid(combined("return x * 2", "return grad * 2", after="def f(x):\n    return Op(x)\n"), (17,)),
        Invalid(
            combined("return x * 2", "return grad * 2", after="def f(x):\n    op = Op()\n    return op(x)\n"), (18,)
        ),
        Invalid(
            combined("return x * 2", "return grad * 2", after="def f(x):\n    return Op.forward(None, x)\n"), (17,)
        ),
        Invalid(
            combined(
                "return x * 2",
                "return grad * 2",
                after="class Layer(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
                "        self.op = Op()\n\n    def forward(self, x):\n        return self.op(x)\n",
            ),
            (22,),
        ),
        # only a note: where no gradient is wanted, forward alone is right
        Invalid(
            combined(
                "return x * 2",
                "return grad * 2",
                after=(
                    "def f(x):\n    if not x.requires_grad:\n        return Op.forward(None, x)\n"
                    "    return Op.apply(x)\n"
                ),
            ),
            (18,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every call of a Function of this file, of an instance of it, and of its forward."""
        if _TEST_FILE.search(file.path):
            return
        for function in autograd_functions(file):
            if {"__new__", "__init__", "__call__"} & {method.name for method in function.own_methods}:
                continue
            if function.forward is not None and function.is_readable:
                yield from _instances(function)
                yield from _forwards(function)


def _instances(function: AutogradFunction) -> Iterator[Hit]:
    """`Op(x)`, and calls of what `Op()` gives: directly, or through a name that is given it once in the file."""
    file = function.file
    names: set[str] = set()
    for call in file.calls(function.name):
        if dotted_name(call.func) != function.name:
            continue
        parent = file.parent(call)
        if isinstance(parent, ast.Call) and parent.func is call:
            yield _hit(function, parent, f"`{function.name}()(…)` raises: a Function is used by `apply`.")
        elif call.args:
            yield _hit(function, call, f"`{function.name}(…)` makes an object and computes nothing: use `apply`.")
        elif isinstance(parent, ast.Assign):
            names |= {name for target in parent.targets if (name := dotted_name(target)) is not None}
    for name in sorted(names):
        for call in file.calls(name.rpartition(".")[2]):
            if dotted_name(call.func) == name and _is_instance(function, call, name):
                yield _hit(function, call, f"`{name}` is a `{function.name}`: calling it raises. Use `apply`.")


def _is_instance(function: AutogradFunction, call: ast.Call, name: str) -> bool:
    """Whether every assignment to the name, in the same function or class, makes an instance of this Function."""
    file = function.file
    place = file.enclosing_class(call) if "." in name else file.enclosing_function(call)
    given: list[ast.expr] = []
    for assignment in file.nodes(ast.Assign):
        if any(dotted_name(target) == name for target in assignment.targets):
            owner = file.enclosing_class(assignment) if "." in name else file.enclosing_function(assignment)
            if owner is place:
                given.append(assignment.value)
    return bool(given) and all(isinstance(item, ast.Call) and dotted_name(item.func) == function.name for item in given)


def _forwards(function: AutogradFunction) -> Iterator[Hit]:
    """`Op.forward(…)` outside of any Function."""
    file = function.file
    for call in file.calls("forward"):
        if dotted_name(call.func) != f"{function.name}.forward" or file.enclosing_autograd_function(call) is not None:
            continue
        conditional = file.grad_disabled(call) or any(
            isinstance(outer, (ast.If, ast.IfExp)) for outer in file.ancestors(call)
        )
        yield Hit(
            call,
            f"`{function.name}.forward` is called directly: autograd differentiates what is inside it and never "
            f"calls the "
            "hand-written backward. Use `apply`.",
            severity=Severity.NOTE if conditional else Severity.WARNING,
            hypothesis={"function": function.name, "symbol": file.symbol(call)},
            related=((function.node, "the Function"),),
            fix=_with_apply(function, call, call.args[1:] if function.setup_context is None else call.args),
        )


def _hit(function: AutogradFunction, call: ast.Call, message: str) -> Hit:
    return Hit(
        call,
        message,
        hypothesis={"function": function.name, "symbol": function.file.symbol(call)},
        related=((function.node, "the Function"),),
        fix=_with_apply(function, call, call.args),
    )


def _with_apply(function: AutogradFunction, call: ast.Call, arguments: list[ast.expr]) -> Rewrite | None:
    """`Op.apply` with these arguments; it takes no keywords."""
    if call.keywords or not arguments:
        return None
    text = ", ".join(function.file.source(argument) for argument in arguments)
    return Rewrite(FixSafety.UNSAFE, (Replacement(call, f"{function.name}.apply({text})"),))
