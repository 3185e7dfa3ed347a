"""How many gradients a custom Function's backward gives back."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from analyzer.autograd_functions import AutogradFunction, autograd_functions
from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.function_edits import line_after
from analyzer.gradient_returns import Gradients, end_is_reached, own_nodes
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule

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
    fix = FixSafety.UNSAFE
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
        fix_safety=(
            "Unsafe: None for the inputs at the end, which may not be the ones without a gradient; a tuple for a list; "
            "`return` of the gradients that backward has named after its inputs."
        ),
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
        _function("with torch.no_grad():\n    return grad, grad, grad"),
        _function("if ctx.flag:\n    return grad, grad, grad\nelse:\n    return None, grad, grad"),
        _function("if ctx.flag:\n    return grad, grad, grad\nraise ValueError"),
        _function("while True:\n    return grad, grad, grad"),
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
        Invalid(_function("d_x = grad\nd_weight = grad\nd_bias = grad"), (11,)),
        Invalid(_function("if ctx.frozen:\n    return None, None, None\ngx = grad\ngw = grad * 2"), (11,)),
        Invalid(_function("if ctx.flag:\n    return grad, grad, grad"), (12,)),
        Invalid(_function("if ctx.flag:\n    gx = grad\nelse:\n    return grad, grad, grad"), (12,)),
        # only notes: the conditions cover every case that the author thought of
        Invalid(
            _function("if ctx.m == 1:\n    return grad, grad, grad\nelif ctx.m == 2:\n    return None, grad, grad"),
            (12,),
        ),
        Invalid(_function("if ctx.needs_input_grad[0]:\n    return grad, grad, grad"), (12,)),
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
                    message = "backward has no return statement, which counts as one None"
                    yield self._hit(function, backward, 1, message, fix=_with_return(function))
                continue
            open_end = _open_end(function)
            if open_end is not None:
                node, severity = open_end
                message = "backward comes to its end without a return on one path, which counts as one None"
                yield self._hit(function, node, 1, message, severity=severity, fix=_with_return(function))
            for item in function.gradients:
                complaint = _complaint(function, item)
                if complaint is not None:
                    yield self._hit(function, item.statement, item.count, complaint, fix=_padded(function, item))

    def _hit(
        self,
        function: AutogradFunction,
        node: ast.AST,
        count: int,
        message: str,
        *,
        severity: Severity | None = None,
        fix: Rewrite | None = None,
    ) -> Hit:
        names = ", ".join(function.input_names)
        expected = len(function.inputs)
        least = "at least " if function.is_variadic else ""
        return Hit(
            node,
            f"{message}; forward takes {least}{expected} input{'s' if expected != 1 else ''} ({names})",
            hypothesis={"function": function.name, "expected": expected, "returned": count},
            related=((function.forward, "the inputs are counted here"),) if function.forward is not None else (),
            severity=severity,
            fix=fix,
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


def _open_end(function: AutogradFunction) -> tuple[ast.AST, Severity | None] | None:
    """(where a path falls off the end of a backward that does return on others, how bad that is).

    Conditions that cover every case in the author's mind (a chain of `elif`, `ctx.needs_input_grad`, whose opposite has
    been excluded before) make it a note.
    """
    backward = function.backward
    assert backward is not None
    last = backward.body[-1]
    if not end_is_reached(backward.body) or any(
        isinstance(node, (ast.Yield, ast.YieldFrom)) for node in own_nodes(backward)
    ):
        return None
    if not isinstance(last, ast.If):
        # Something is worked out at the end and not returned; a loop or a call may be there for its effect.
        computed = isinstance(last, (ast.Assign, ast.AugAssign))
        return backward, Severity.ERROR if computed else Severity.WARNING
    chain = len(last.orelse) == 1 and isinstance(last.orelse[0], ast.If)
    asked = any(isinstance(node, ast.Attribute) and node.attr == "needs_input_grad" for node in own_nodes(backward))
    return last.test, Severity.NOTE if chain or asked else Severity.WARNING


def _with_return(function: AutogradFunction) -> Rewrite | None:
    """`return grad_x, grad_w` at the end, where backward has named a gradient for every input."""
    backward = function.backward
    assert backward is not None
    assigned = {
        node.id for node in own_nodes(backward) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    given: list[str] = []
    for name in function.input_names:
        short = name.strip("_")
        spellings = (f"grad_{short}", f"{short}_grad", f"d_{short}", f"d{short}", f"g_{short}", f"g{short}")
        found = [spelling for spelling in spellings if spelling in assigned]
        if len(found) != 1:
            return None
        given.append(found[0])
    edit = line_after(function.file, backward.body[-1], f"return {', '.join(given)}")
    return Rewrite(FixSafety.UNSAFE, (edit,)) if edit is not None else None


def _padded(function: AutogradFunction, item: Gradients) -> Rewrite | None:
    """The same gradients with None for the inputs that have none; a list becomes a tuple."""
    value = item.statement.value if isinstance(item.statement, ast.Return) else None
    if value is None or function.is_variadic:
        return None
    given = list(value.elts) if isinstance(value, (ast.Tuple, ast.List)) else [value]
    if not isinstance(value, (ast.Tuple, ast.List)) and item.items != (value,):
        return None  # a tuple put together elsewhere
    missing = len(function.inputs) - len(given)
    if missing < 0 or not given or any(isinstance(part, ast.Starred) for part in given):
        return None
    text = ", ".join([*(function.file.source(part) for part in given), *["None"] * missing])
    return Rewrite(FixSafety.UNSAFE, (Replacement(value, f"({text})" if len(given) + missing > 1 else f"({text},)"),))
