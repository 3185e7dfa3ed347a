"""A custom Function's forward that changes an input without telling autograd."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from analyzer.autograd_functions import AutogradFunction, autograd_functions
from analyzer.context import FileContext
from analyzer.facts import operations
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.function_edits import line_before
from analyzer.function_memory import Memory, is_basic_index
from analyzer.function_writes import is_collective, writes_in
from analyzer.gradient_returns import own_nodes
from analyzer.rules.base import Documentation, Hit, Invalid, Rewrite, Rule
from analyzer.syntax import FunctionNode, terminal_name

_HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch.autograd import Function\n\n\n"


def _class(forward: str, backward: str = "return grad * 2", inputs: str = "x") -> str:
    lines = "".join(f"        {line}\n" for line in forward.splitlines())
    return (
        f"{_HEAD}class Double(Function):\n    @staticmethod\n    def forward(ctx, {inputs}):\n{lines}\n"
        f"    @staticmethod\n    def backward(ctx, grad):\n        {backward}\n"
    )


class MissingMarkDirty(Rule):
    """Forward changes an input in place and does not call mark_dirty."""

    id = "GP307"
    name = "missing-mark-dirty"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck", "finding_search")
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    triggers = ("Function",)
    documentation = Documentation(
        what_it_does=(
            "Finds an in-place change of an input inside the forward of a custom `torch.autograd.Function`, where "
            "backward returns a gradient for that input and `ctx.mark_dirty` is not called for it. Buffers and "
            "counters (inputs without a gradient) and copies are left alone."
        ),
        why_is_this_bad=(
            "Autograd does not look inside forward: unless told by `ctx.mark_dirty`, it takes the input for "
            "unchanged. Whoever uses the changed tensor afterwards gets the gradient of the unchanged one, without "
            "an error (3 instead of 6 in our measurement)."
        ),
        faulty_example=_class("x.mul_(2)\nreturn x"),
        right_example=_class("ctx.mark_dirty(x)\nx.mul_(2)\nreturn x"),
        fix_safety=(
            "Unsafe: adds `ctx.mark_dirty` where the input is returned, as it then has to be; elsewhere the input is "
            "copied "
            "before it is changed, so that the caller's tensor stays as it was."
        ),
    )
    valid = (
        _class("x.mul_(2)\nctx.mark_dirty(x)\nreturn x"),
        _class("x = x.clone()\nx.mul_(2)\nreturn x"),
        _class("y = x.clone()\ny.mul_(2)\nreturn y"),
        _class("y = x * 2\ny += 1\nreturn y"),
        _class("count += 1\nreturn x * 2", "return grad * 2, None", inputs="x, count"),
        _class("out[:] = x * 2\nreturn x * 2", "return grad * 2, None", inputs="x, out"),
        _class("running.mul_(0.9).add_(x.mean())\nreturn x * 2", "return grad * 2, None", inputs="x, running"),
        _class("inputs = [x]\nctx.mark_dirty(*inputs)\nx.mul_(2)\nreturn x"),
        _class("x.data[0] = 2\nreturn x"),
        _class("x[x > 0].mul_(2)\nreturn x * 2"),
    )
    invalid = (
        Invalid(_class("x.mul_(2)\nreturn x"), (9,)),
        Invalid(_class("x *= 2\nreturn x"), (9,)),
        Invalid(_class("x.copy_(x * 2)\nreturn x"), (9,)),
        Invalid(_class("return x.mul_(2)"), (9,)),
        Invalid(_class("x[x < 0] = 0\nreturn x * 2"), (9,)),
        Invalid(_class("F.relu(x, inplace=True)\nreturn x * 2"), (9,)),
        Invalid(_class("torch.mul(x, 2, out=x)\nreturn x"), (9,)),
        Invalid(_class("x.view(-1)[0:2].mul_(2)\nreturn x * 2"), (9,)),
        Invalid(_class("ctx.mark_dirty(y)\ny.add_(x)\nx.mul_(2)\nreturn x, y", "return grad, grad", "x, y"), (11,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every in-place change of an input, once for each input."""
        for function in autograd_functions(file):
            forward = function.forward
            if forward is None or not function.is_readable:
                continue
            marked = _marked_names(function)
            if marked is None:
                continue
            memory = Memory(function, forward)
            positions = {name: index for index, name in enumerate(function.input_names)}
            reported: set[str] = set()
            for write in writes_in(file, own_nodes(forward)):
                name = _written_name(file, write.target)
                if name not in positions or name in marked or name in reported:
                    continue
                if _rebound_before(forward, name, write.node) or not function.receives_gradient(positions[name]):
                    continue
                reported.add(name)
                yield Hit(
                    write.node,
                    f"forward changes its input {name} in place ({write.how}) without ctx.mark_dirty({name}): whoever "
                    "uses it afterwards gets the gradient of the unchanged tensor",
                    severity=Severity.NOTE if is_collective(write) else None,
                    hypothesis={"function": function.name, "input": name, "position": positions[name]},
                    fix=_fix(function, forward, memory, name, write.node),
                )


def _fix(function: AutogradFunction, forward: FunctionNode, memory: Memory, name: str, node: ast.AST) -> Rewrite | None:
    """Mark the input where it is returned on every path; where it is not, leave the caller's tensor alone."""
    file = function.file
    statement, context = file.statement(node), function.context_name(forward)
    if statement is None:
        return None
    returned = [item.value for item in file.returns_of(forward)]
    if context is not None and returned and all(_returns(value, name, memory) for value in returned):
        edit = line_before(file, statement, f"{context}.mark_dirty({name})")
    else:
        edit = line_before(file, statement, f"{name} = {name}.clone()")
    return Rewrite(FixSafety.UNSAFE, (edit,)) if edit is not None else None


def _returns(value: ast.expr | None, name: str, memory: Memory) -> bool:
    """Whether an input itself is among what is returned; a view of it is not enough."""
    items = value.elts if isinstance(value, ast.Tuple) else [value]
    for item in items:
        if isinstance(item, (ast.Name, ast.Call)) and not _is_view(item):
            origin = memory.origin(item)
            if origin is not None and origin.certain and origin.name == name:
                return True
    return False


def _is_view(item: ast.expr) -> bool:
    return isinstance(item, ast.Call) and operations().views(f"torch.Tensor.{terminal_name(item.func)}")


def _written_name(file: FileContext, target: ast.expr) -> str | None:
    """The name whose memory a write reaches, through slices, views and chained in-place methods."""
    while True:
        if isinstance(target, ast.Name):
            return target.id
        if (isinstance(target, ast.Subscript) and is_basic_index(target.slice)) or (
            isinstance(target, ast.Attribute) and target.attr in {"T", "mT"}
        ):
            target = target.value
        elif isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):
            method = f"torch.Tensor.{target.func.attr}"
            if file.qualified_name(target.func) is not None:
                return None
            known = operations()
            if not (known.views(method) or known.writes(method) or target.func.attr == "copy_"):
                return None
            target = target.func.value
        else:
            return None


def _marked_names(function: AutogradFunction) -> frozenset[str] | None:
    """The inputs given to `mark_dirty`; None when a call of it does not say which."""
    found: set[str] = set()
    for method in (function.forward, function.setup_context):
        if method is None:
            continue
        names = _unpacked_inputs(function, method)
        for node in own_nodes(method):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr != "mark_dirty":
                continue
            for argument in node.args:
                if not isinstance(argument, ast.Name) or argument.id not in names:
                    return None
                found.add(names[argument.id])
    return frozenset(found)


def _unpacked_inputs(function: AutogradFunction, method: FunctionNode) -> dict[str, str]:
    """Local name → name of the input in forward."""
    names = {name: name for name in function.input_names}
    if method is not function.setup_context:
        return names
    found: dict[str, str] = {}
    parameters = [argument.arg for argument in method.args.args]
    for node in own_nodes(method):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in parameters[1:2]:
            for target in node.targets:
                if isinstance(target, ast.Tuple):
                    pairs = zip(target.elts, function.input_names, strict=False)
                    found.update({item.id: name for item, name in pairs if isinstance(item, ast.Name)})
    return found


def _rebound_before(function: FunctionNode, name: str, place: ast.AST) -> bool:
    """Whether the name was bound to something else before the place: it no longer is the input."""
    line = getattr(place, "lineno", 0)
    return any(
        isinstance(node, ast.Name)
        and node.id == name
        and isinstance(node.ctx, ast.Store)
        and node.lineno < line
        and not _is_augmented(function, node)
        for node in own_nodes(function)
    )


def _is_augmented(function: FunctionNode, name: ast.Name) -> bool:
    return any(isinstance(node, ast.AugAssign) and node.target is name for node in own_nodes(function))
