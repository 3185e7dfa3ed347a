"""Custom autograd Functions that torch.compile can't take into its graph (GP508)."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.compiled_regions import Region, asks_for_compiling, compiled_regions
from analyzer.context import FileContext
from analyzer.facts import graph_breaks
from analyzer.findings import Confidence, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.tensor_evidence import tensor_evidence

_FUNCTION = (
    "import torch\nclass F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
    "        ctx.save_for_backward(x)\n        return x * 2\n    @staticmethod\n    def backward(ctx, grad):\n"
)
_LINE = 9


class BackwardBranchesOnData(Rule):
    id = "GP508"
    name = "function-backward-branches-on-data"
    severity = Severity.NOTE
    confidence = Confidence.HIGH
    settled_by = ("compile_equivalence",)
    torch_versions = "2.13"
    triggers = ("Function",)
    documentation = Documentation(
        what_it_does=(
            "Finds `if` and `while` on the value of a tensor in the `backward` of a custom autograd Function. A "
            "warning where the file compiles code that applies the Function, else a note. Tests of `None`, of "
            "`ctx.needs_input_grad`, of shapes and types are fine."
        ),
        why_is_this_bad=(
            "torch.compile traces `backward` when it meets `apply` in the forward pass. A branch on data there makes "
            "torch 2.13 leave the whole Function out of the graph (GB0170), and with `fullgraph=True` it raises. On a "
            "GPU each backward waits for the device."
        ),
        faulty_example=_FUNCTION
        + "        if grad.abs().max() > 1:\n            grad = grad / grad.abs().max()\n        return grad * 2\n",
        right_example=_FUNCTION + "        return 2 * grad / grad.abs().max().clamp(min=1)\n",
        fix_safety="No automatic fix: the branch becomes `torch.where`, a clamp or a product.",
    )
    valid = (
        _FUNCTION + "        (x,) = ctx.saved_tensors\n        if grad is None:\n            return None\n"
        "        if ctx.needs_input_grad[0] and x.shape[0] > 1 and x.dtype == torch.float32:\n"
        "            return grad * 2\n        return grad\n",
        _FUNCTION + "        return torch.where(grad > 1, 1.0, grad) * 2\n",
        _FUNCTION + "        assert (grad < 1e9).all()\n        return grad * 2\n",
        "import torch\nclass Plain:\n    @staticmethod\n    def backward(ctx, grad):\n"
        "        if grad.abs().max() > 1:\n            return grad / 2\n        return grad\n",
    )
    invalid = (
        Invalid(
            _FUNCTION + "        if grad.abs().max() > 1:\n            return grad\n        return grad * 2\n", (_LINE,)
        ),
        Invalid(
            _FUNCTION + "        (x,) = ctx.saved_tensors\n        if torch.isnan(x).any():\n            return grad\n"
            "        return grad * 2\n",
            (_LINE + 1,),
        ),
        Invalid(
            _FUNCTION + "        if (grad == 0).all():\n            return None\n        return grad * 2\n"
            "@torch.compile(fullgraph=True)\ndef f(x):\n    return F.apply(x)\n",
            (_LINE,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every branch on data in the backward of a Function."""
        for owner in file.autograd_functions:
            for method in owner.body:
                if isinstance(method, ast.FunctionDef) and method.name == "backward":
                    branches: list[ast.If | ast.While] = [*file.nodes_in(method, ast.If)]
                    branches.extend(file.nodes_in(method, ast.While))
                    for branch in branches:
                        yield from self._branch(file, branch, owner)

    def _branch(self, file: FileContext, branch: ast.If | ast.While, owner: ast.ClassDef) -> Iterator[Hit]:
        tested = next((test for test in _parts(branch.test) if tensor_evidence(file).is_tensor(test)), None)
        if tested is None or asks_for_compiling(file, branch):
            return
        region = _applied_in(file, owner)
        related: tuple[tuple[ast.AST, str], ...] = (
            ((region.node, "applied in what is compiled here"),) if region else ()
        )
        yield Hit(
            tested,
            f"`backward` branches on what the tensor `{file.source(tested)}` holds: torch.compile leaves the whole "
            f"Function out of its graph ({graph_breaks().numbers(self.id)[0]} of torch {graph_breaks().version}).",
            severity=Severity.WARNING if region is not None else None,
            hypothesis={"function": owner.name, "operand": file.source(tested)},
            related=related,
        )


def _parts(test: ast.expr) -> Iterator[ast.expr]:
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _parts(value)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _parts(test.operand)
    else:
        yield test


def _applied_in(file: FileContext, owner: ast.ClassDef) -> Region | None:
    """The compiled region that applies a Function, if one does."""
    for call in file.calls("apply"):
        applied = call.func.value if isinstance(call.func, ast.Attribute) else None
        if isinstance(applied, ast.Name) and applied.id == owner.name:
            region = compiled_regions(file).of(call)
            if region is not None:
                return region
    return None
