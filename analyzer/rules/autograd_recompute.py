"""A Function that asks autograd for gradients where nothing is recorded (GP332)."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.autograd_functions import AutogradFunction, autograd_functions
from analyzer.context import FileContext
from analyzer.findings import Confidence, Severity
from analyzer.gradient_returns import own_nodes
from analyzer.rules.autograd_examples import combined
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.syntax import FunctionNode, terminal_name

_ENABLING = frozenset({"enable_grad", "set_grad_enabled", "inference_mode"})
_RECORDED = "x = ctx.saved_tensors[0].detach().requires_grad_()\n"


class GradientWithoutRecording(Rule):
    """A method of a Function differentiates what it has computed without recording."""

    id = "GP332"
    name = "gradient-without-recording"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    triggers = ("Function",)
    documentation = Documentation(
        what_it_does=(
            "Finds `torch.autograd.grad(y, …)` or `y.backward()` in a method of a custom `torch.autograd.Function` "
            "that "
            "computes `y` itself, with no `torch.enable_grad()` in that method."
        ),
        why_is_this_bad=(
            "Autograd runs forward without recording, and backward too unless `create_graph=True` is given. What is "
            "computed there has no history, and torch raises `element 0 of tensors does not require grad and does "
            "not have "
            "a grad_fn`. `requires_grad_()` on the input changes nothing about that."
        ),
        faulty_example=combined(
            "ctx.save_for_backward(x)\nreturn x * x",
            f"{_RECORDED}y = x * x\nreturn torch.autograd.grad(y, x, grad)[0]",
        ),
        right_example=combined(
            "ctx.save_for_backward(x)\nreturn x * x",
            f"{_RECORDED}with torch.enable_grad():\n    y = x * x\nreturn torch.autograd.grad(y, x, grad)[0]",
        ),
        fix_safety="No automatic fix: put what is differentiated under `with torch.enable_grad():`.",
    )
    valid = (
        combined(
            "ctx.save_for_backward(x)\nreturn x * x",
            f"{_RECORDED}with torch.set_grad_enabled(True):\n    y = x * x\ny.backward(grad)\nreturn x.grad",
        ),
        # the graph comes from forward, which recorded it
        combined(
            "with torch.enable_grad():\n    y = x * x\nctx.save_for_backward(x, y)\nreturn y.detach()",
            "x, y = ctx.saved_tensors\nreturn torch.autograd.grad(y, x, grad)[0]",
        ),
        combined("return x * x", "y = ctx.recorded\ny.backward(grad)\nreturn ctx.x.grad"),
        combined("return x * x", "y = recompute(grad)\ny.backward(grad)\nreturn None"),
        combined(
            "return x * x",
            "@torch.enable_grad()\ndef run(z):\n    return z\ny = run(grad) * 1\nreturn torch.autograd.grad(y, grad)",
        ),
        combined("return x * x", "y = grad * 2\nkernel.backward(y)\nreturn y"),
        combined("return x * x", "return torch.autograd.grad(outputs=ctx.y, inputs=ctx.x, grad_outputs=grad)[0]"),
    )
    invalid = (
        Invalid(
            combined(
                "ctx.save_for_backward(x)\nreturn x * x",
                f"{_RECORDED}y = x * x\nreturn torch.autograd.grad(y, x, grad)[0]",
            ),
            (16,),
        ),
        Invalid(
            combined(
                "ctx.save_for_backward(x)\nreturn x * x",
                f"{_RECORDED}y = torch.exp(x)\ny.backward(grad)\nreturn x.grad",
            ),
            (16,),
        ),
        Invalid(combined("return torch.autograd.grad((x * x).sum(), x)[0]", "return grad"), (9,)),
        Invalid(combined("y = x.square().sum()\ny.backward()\nreturn x.grad", "return grad"), (10,)),
        Invalid(combined("y = x * x\nreturn torch.autograd.grad(outputs=y, inputs=x)[0]", "return grad"), (10,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every method that asks for gradients and never turns recording on."""
        for function in autograd_functions(file):
            for method in (function.forward, function.backward):
                if method is None or _records(method):
                    continue
                for call, computed in _asked_for(function, method):
                    yield Hit(
                        call,
                        f"`{file.source(computed)}` is computed in `{method.name}`, which autograd runs without "
                        f"recording: "
                        "asking for its gradient raises. Compute it under `torch.enable_grad()`.",
                        hypothesis={"function": function.name, "symbol": file.symbol(call)},
                        related=((method, "nothing is recorded in here"),),
                    )


def _records(method: FunctionNode) -> bool:
    nodes: list[ast.AST] = [*own_nodes(method), *method.decorator_list]
    return any(terminal_name(node) in _ENABLING for node in nodes) or any(
        isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) for node in nodes
    )


def _asked_for(function: AutogradFunction, method: FunctionNode) -> Iterator[tuple[ast.Call, ast.expr]]:
    """(the call, what it differentiates) where that was computed by arithmetic or by torch in this method."""
    file = function.file
    for node in own_nodes(method):
        if not isinstance(node, ast.Call):
            continue
        asked: ast.expr | None = None
        if file.qualified_name(node.func) == "torch.autograd.grad":
            named = [keyword.value for keyword in node.keywords if keyword.arg == "outputs"]
            asked = node.args[0] if node.args else named[0] if named else None
        elif (
            isinstance(node.func, ast.Attribute)
            and node.func.attr == "backward"
            and isinstance(node.func.value, ast.Name)
        ):
            asked = node.func.value
        if asked is not None and _is_computed(file, asked):
            yield node, asked


def _is_computed(file: FileContext, asked: ast.expr) -> bool:
    computed = file.values.single_definition(asked) if isinstance(asked, ast.Name) else asked
    if isinstance(computed, ast.BinOp):
        return True
    if not isinstance(computed, ast.Call):
        return False
    operation = file.values.operation(computed)
    if operation is None or operation.operand is None:
        return False
    return bool(operation.qualified) or file.values.value(computed).kind.name.endswith("TENSOR")
