"""How many gradients a custom Function's backward gives back."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from analyzer.autograd_functions import AutogradFunction, autograd_functions
from analyzer.context import FileContext
from analyzer.findings import Confidence, Severity
from analyzer.gradient_returns import Gradients, own_nodes
from analyzer.rules.base import Documentation, Hit, Invalid, Rule

_HEAD = "import torch\nfrom torch.autograd import Function\n\n\n"


def _function(backward: str, inputs: str = "x, weight, bias", base: str = "Function") -> str:
    body = "".join(f"        {line}\n" for line in backward.splitlines())
    return (
        f"{_HEAD}class Scale({base}):\n    @staticmethod\n    def forward(ctx, {inputs}):\n"
        "        return x * weight + bias\n\n    @staticmethod\n    def backward(ctx, grad):\n" + body
    )


class BackwardArity(Rule):
    """The number of gradients that backward returns is not the number of inputs of forward."""

    id = "GP303"
    name = "backward-arity"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    triggers = ("Function",)
    documentation = Documentation(
        what_it_does=(
            "Counts the gradients in every `return` of the backward of a custom `torch.autograd.Function` and "
            "compares with the inputs of its forward. Further `None` at the end are allowed, as torch allows them; "
            "`*args`, starred items and tuples that are put together elsewhere are not counted."
        ),
        why_is_this_bad=(
            "Autograd raises `returned an incorrect number of gradients (expected 3, got 2)`, and only in the "
            "backward pass: forward, and every test without a backward, work. A list counts as one gradient, and so "
            "does a backward without `return`."
        ),
        faulty_example=_function("return grad, grad"),
        right_example=_function("return grad, grad, grad"),
        fix_safety="No automatic fix: which gradient is missing only its author knows.",
    )
    valid = (
        _function("return grad, grad, grad, None, None"),
        _function("grads = [grad] * 3\nreturn tuple(grads)"),
        _function("return (grad,) + (None,) * 2"),
        _function("rest = (None, None)\nreturn (grad, *rest)"),
        _function("result = (grad, grad)\nif ctx.affine:\n    result = result + (grad,)\nreturn result"),
        _function("return Other.apply(grad)"),
        _function("return torch.autograd.grad(ctx.y, ctx.inputs, grad)"),
        _function("return grad, None", inputs="x, *rest"),
        _function("return grad", inputs="x, weight=2.0, bias=1.0"),
        _function("return (grad, grad) + (None,) * (ctx.count - 2)"),
        _function("raise NotImplementedError"),
        _HEAD + "class Scale(Function):\n    @classmethod\n    def forward(cls, ctx, x):\n        return x * 2\n\n"
        "    @classmethod\n    def backward(cls, ctx, grad):\n        return grad * 2\n",
        _HEAD + "class Nearest(Function):\n    @staticmethod\n    def forward(ctx, x, y):\n"
        "        index = torch.cdist(x, y).argmin(1)\n        ctx.mark_non_differentiable(index)\n"
        "        return index\n\n    @staticmethod\n    def backward(ctx, grad=None):\n        return ()\n",
        _function("return grad, grad", base="Base"),
        _HEAD + "class Scale(Function):\n    @staticmethod\n    def forward(x, weight):\n        return x * weight\n\n"
        "    @staticmethod\n    def setup_context(ctx, inputs, output):\n        ctx.save_for_backward(*inputs)\n\n"
        "    @staticmethod\n    def backward(ctx, grad):\n        x, weight = ctx.saved_tensors\n"
        "        return grad * weight, grad * x\n",
        _function("def inner(g):\n    return g, g\nreturn (*inner(grad), grad)"),
        _function("extra = None\nif ctx.debug:\n    extra = None\nreturn grad, grad, grad, extra"),
    )
    invalid = (
        Invalid(_function("return grad, grad"), (12,)),
        Invalid(_function("return grad"), (12,)),
        Invalid(_function("return grad * 2"), (12,)),
        Invalid(_function("return [grad, grad, grad]"), (12,)),
        Invalid(_function("if grad is None:\n    return None\nreturn grad, grad, grad"), (13,)),
        Invalid(_function("return grad, grad, grad, grad.sum()"), (12,)),
        Invalid(_function("out = grad.clone()\nreturn out"), (13,)),
        Invalid(_function("result = (grad,) + (None,)\nreturn result"), (13,)),
        Invalid(_function("gx = grad * 2\ngw = grad * 3"), (11,)),
        Invalid(
            _HEAD + "class Scale(Function):\n    @staticmethod\n    def forward(x, weight):\n"
            "        return x * weight\n\n    @staticmethod\n    def setup_context(ctx, inputs, output):\n"
            "        ctx.save_for_backward(*inputs)\n\n    @staticmethod\n    def backward(ctx, grad):\n"
            "        x, weight = ctx.saved_tensors\n        return None, grad * weight, grad * x\n",
            (17,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every countable return of every backward whose class is wholly in this file."""
        for function in autograd_functions(file):
            forward, backward = function.forward, function.backward
            if not function.is_readable or forward is None or backward is None or forward.args.kwonlyargs:
                continue
            if function.has_no_gradient:
                continue
            if not function.returns:
                if _computes_and_returns_nothing(function):
                    yield self._hit(function, backward, 1, "backward has no return statement, which counts as one None")
                continue
            for item in function.gradients:
                message = _complaint(function, item)
                if message is not None:
                    yield self._hit(function, item.statement, item.count, message)

    def _hit(self, function: AutogradFunction, node: ast.AST, count: int, message: str) -> Hit:
        names = ", ".join(function.input_names)
        expected = len(function.inputs)
        least = "at least " if function.is_variadic else ""
        return Hit(
            node,
            f"{message}; forward takes {least}{expected} input{'s' if expected != 1 else ''} ({names})",
            hypothesis={"function": function.name, "expected": expected, "returned": count},
            related=((function.forward, "the inputs are counted here"),) if function.forward is not None else (),
        )


def _complaint(function: AutogradFunction, item: Gradients) -> str | None:
    expected = len(function.inputs)
    if item.is_list:
        if function.is_variadic and function.required_inputs < 2:
            return None
        return "backward returns a list, which autograd takes for one gradient (a tuple is needed)"
    if item.count < function.required_inputs:
        plural = "s" if item.count != 1 else ""
        return f"backward returns {item.count} gradient{plural}"
    extra = item.items[expected:]
    if not function.is_variadic and any(function.certainly_gives(value) for value in extra):
        return f"backward returns {item.count} gradients, of which those beyond the inputs would have to be None"
    return None


def _computes_and_returns_nothing(function: AutogradFunction) -> bool:
    """A body that works something out and then falls off its end."""
    backward = function.backward
    assert backward is not None
    nodes = list(own_nodes(backward))
    if any(isinstance(node, (ast.Raise, ast.Yield, ast.YieldFrom)) for node in nodes):
        return False
    return any(isinstance(node, (ast.Assign, ast.AugAssign)) for node in nodes)
