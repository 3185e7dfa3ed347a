"""What the rules on in-place writes share: how sure they may be, how operations are called, and out-of-place rewrites.

This module must not decide whether something is a finding.
"""

from __future__ import annotations

import ast
import re

from analyzer.context import FileContext
from analyzer.facts import operations
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.lost_gradients import is_loss
from analyzer.rules.base import Replacement, Rewrite
from analyzer.saved_values import Differentiable
from analyzer.syntax import FunctionNode
from analyzer.tensor_writes import Write

# Data preparation, optimizers, schedules and metrics run without gradients, mostly unmarked: of 45 findings on
# arguments of such functions in sixteen packages (2.7 million lines) not one was a fault.
_WITHOUT_GRADIENTS = re.compile(
    r"(optim|schedul|transforms?[/._]|image_process|video_process|feature_extract|preprocess|postprocess|metric|pipeline|"
    r"dataset|/data/|inits?\.py|initiali|augment|box_utils|ransac)"
)

# These run a trained model: codecs, beam search, sampling. A backward would raise there, but none is meant.
_INFERENCE_NAMES = re.compile(r"compress|decode|recogni[sz]e|beam|generat|infer|predict|sampl|evaluate|visuali[sz]e")

_SAYS_INFERENCE = re.compile(r"\bonly (for|during|in|at) inference\b|\binference[- ]only\b", re.IGNORECASE)

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
}


def judged(
    file: FileContext, function: FunctionNode, degree: Differentiable, *, in_forward: bool
) -> tuple[Severity | None, Confidence] | None:
    """(severity, None for the rule's own; confidence) by how sure it is that gradients flow; None to stay silent."""
    if _INFERENCE_NAMES.search(function.name.lower()) or _says_inference_only(file, function):
        return Severity.NOTE, Confidence.LOW
    if degree is Differentiable.CERTAIN:
        return None, Confidence.HIGH
    if degree is Differentiable.LIKELY:
        return None, Confidence.MEDIUM
    if in_forward or is_loss(file, function):
        return Severity.WARNING, Confidence.MEDIUM
    if _WITHOUT_GRADIENTS.search(file.path.lower()) or function.name.startswith(("init", "reset", "_init")):
        return None
    return Severity.NOTE, Confidence.LOW


def _says_inference_only(file: FileContext, function: FunctionNode) -> bool:
    """Whether the docstring, or the comment before the first statement, keeps a function from training."""
    comment = file.line(function.body[0].lineno - 1).partition("#")[2]
    return _SAYS_INFERENCE.search(f"{comment} {ast.get_docstring(function, clean=False) or ''}") is not None


def operation_name(name: str) -> str:
    """How a person writes the operation: `exp()`, `nn.Linear`, `*`."""
    for symbol, spelled in (("mul", "*"), ("truediv", "/"), ("pow", "**"), ("matmul", "@")):
        if name in {f"operator.{symbol}", f"operator.i{symbol}"}:
            return spelled
    if name.startswith("torch.nn.functional."):
        return f"F.{name.rpartition('.')[2]}()"
    if name.startswith("torch.nn."):
        return name.removeprefix("torch.")
    return f"{name.rpartition('.')[2]}()"


def called_without_gradients(file: FileContext, function: FunctionNode) -> bool:
    """Whether every call of a function in its own file stands under `no_grad` (and there is one)."""
    calls = file.calls(function.name)
    return bool(calls) and all(file.grad_disabled(call) for call in calls)


# --- rewrites --------------------------------------------------------------------------------------------------------


def out_of_place(file: FileContext, write: Write, safety: FixSafety) -> Rewrite | None:
    """The same values in a new tensor, under the same name; None where that takes more than one expression."""
    node = write.node
    replacement: Replacement | None = None
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        symbol = _OPERATORS.get(type(node.op))
        if symbol is not None:
            name = node.target.id
            replacement = Replacement(node, f"{name} = {name} {symbol} {file.operand_source(node.value)}")
    elif isinstance(node, ast.Call):
        replacement = _call_out_of_place(file, node, write)
    return Rewrite(safety, (replacement,)) if replacement is not None else None


def _call_out_of_place(file: FileContext, call: ast.Call, write: Write) -> Replacement | None:
    if not isinstance(call.func, ast.Attribute) or not call.func.attr.endswith("_") or call.keywords:
        return None
    source = file.source(call.func)
    if file.qualified_name(call.func) is not None:
        plain = source.rstrip("_")
        known = operations().returns_one_tensor((file.qualified_name(call.func) or "").rstrip("_"))
    else:
        plain = f"{file.operand_source(call.func.value)}.{call.func.attr.rstrip('_')}"
        known = operations().returns_one_tensor(f"torch.Tensor.{call.func.attr.rstrip('_')}")
    if not known:
        return None
    parent = file.parent(call)
    if isinstance(parent, ast.Expr):
        if not isinstance(write.target, ast.Name):
            return None
        return Replacement(parent, f"{write.target.id} = {plain}{file.source(call)[len(source) :]}")
    return Replacement(call.func, plain) if result_replaces(file, call, write) else None


def result_replaces(file: FileContext, call: ast.Call, write: Write) -> bool:
    """Whether nobody can look at what was written but through the result: `x = x.mul_(2)`, `f(x).mul_(2)`."""
    if isinstance(write.target, ast.Call):
        return True
    parent = file.parent(call)
    name = write.target.id if isinstance(write.target, ast.Name) else None
    if isinstance(parent, ast.Return):
        return name is not None
    targets = parent.targets if isinstance(parent, ast.Assign) else []
    return len(targets) == 1 and isinstance(targets[0], ast.Name) and targets[0].id == name


def under_no_grad(file: FileContext, node: ast.AST, safety: FixSafety) -> Rewrite | None:
    """The statement of a write, moved under `torch.no_grad()`."""
    statement = file.statement(node)
    no_grad = file.spelling("torch.no_grad")
    simple = isinstance(statement, (ast.Expr, ast.AugAssign)) or (
        isinstance(statement, ast.Assign) and all(isinstance(target, ast.Subscript) for target in statement.targets)
    )
    if statement is None or no_grad is None or not simple:
        return None
    source = "\n    ".join(file.source(statement).split("\n"))
    return Rewrite(safety, (Replacement(statement, f"with {no_grad}():\n    {source}"),))
