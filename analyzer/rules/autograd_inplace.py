"""A backward that writes into tensors it was only lent: the incoming gradient (GP306), the saved tensors (GP326)."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.autograd_functions import AutogradFunction, autograd_functions
from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.function_edits import line_before
from analyzer.function_memory import Memory, Origin, Role
from analyzer.function_writes import is_collective, writes_in
from analyzer.gradient_returns import own_nodes
from analyzer.rules.autograd_examples import combined
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import FunctionNode
from analyzer.tensor_writes import Write


def _writes(file: FileContext, function: FunctionNode, role: Role, memory: Memory) -> Iterator[tuple[Write, Origin]]:
    """The first write into each tensor of this role, in source order."""
    seen: set[str] = set()
    for write in writes_in(file, own_nodes(function)):
        file.check_deadline()
        origin = memory.origin(write.target)
        if origin is not None and origin.role is role and origin.name not in seen:
            seen.add(origin.name)
            yield write, origin


def _root(target: ast.expr) -> ast.Name | None:
    """The name at the bottom of a chain of methods, attributes and indices."""
    while True:
        match target:
            case ast.Name():
                return target
            case ast.Call(func=ast.Attribute(value=value)) | ast.Attribute(value=value) | ast.Subscript(value=value):
                target = value
            case _:
                return None


def _fix(file: FileContext, write: Write, origin: Origin) -> Rewrite | None:
    """Write into a copy: `g = g * y` for `g *= y`, `g = g.clone()` before a statement, `g.clone()` inside one."""
    root = _root(write.target)
    statement = file.statement(write.node)
    if root is None or statement is None or root.id != origin.name:
        return None
    if any(isinstance(binding.statement, ast.For) for binding in file.values.definitions(root)):
        return None  # the changed tensor is read again under the name of the sequence
    replacement: Replacement | None = None
    in_comprehension = any(getattr(outer, "generators", None) for outer in file.ancestors(root))
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        sign = _SIGNS[type(statement.op)]
        value = statement.value
        operand = file.source(value) if isinstance(value, ast.Constant) else file.operand_source(value)
        text = f"{root.id} = {root.id} {sign} {operand}"
        replacement = Replacement(statement, text)
    elif isinstance(statement, ast.Return) or in_comprehension:
        replacement = Replacement(root, f"{root.id}.clone()")
    elif isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign)):
        replacement = line_before(file, statement, f"{root.id} = {root.id}.clone()")
    return Rewrite(FixSafety.SAFE, (replacement,)) if replacement is not None else None


_SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
}


class GradientChangedInPlace(Rule):
    """Backward changes the gradient it was handed."""

    id = "GP306"
    name = "gradient-changed-in-place"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    fix = FixSafety.SAFE
    triggers = ("Function",)
    documentation = Documentation(
        what_it_does=(
            "Finds an in-place operation on the gradient that the backward of a custom `torch.autograd.Function` is "
            "given: `grad *= s`, `grad.mul_(s)`, `grad[mask] = 0`, `out=grad`, also through a view or through "
            "`contiguous()`, which gives back the same tensor whenever there is nothing to rearrange."
        ),
        why_is_this_bad=(
            "The gradient belongs to the engine, and the same tensor may be on its way to another branch: with "
            "`f(x) + x` the second summand then gets the changed values, silently (the caller's buffer went from 1 to "
            "2 in our measurement). A gradient that was expanded, as `sum()` makes it, raises instead."
        ),
        faulty_example=combined(
            "ctx.factor = factor\nreturn x * factor", "grad *= ctx.factor\nreturn grad, None", "x, factor"
        ),
        right_example=combined("ctx.factor = factor\nreturn x * factor", "return grad * ctx.factor, None", "x, factor"),
        fix_safety="Safe: the same values are computed into a tensor of backward's own.",
    )
    valid = (
        combined("return x * 2", "grad = grad.clone()\ngrad *= 2\nreturn grad"),
        combined("return x * 2", "grad = grad * 2\ngrad.add_(1)\nreturn grad"),
        combined("return x * 2", "result = torch.empty_like(grad)\nresult.copy_(grad)\nresult.mul_(2)\nreturn result"),
        combined(
            "ctx.save_for_backward(x > 0)\nreturn x.relu()",
            "(mask,) = ctx.saved_tensors\nout = grad * mask\nout[~mask] = 0\nreturn out",
        ),
        # a selection by a mask is a copy
        combined(
            "return x, x * 2", "for g in (grads[0] * 2, grads[1] * 2):\n    g.mul_(2)\nreturn g", gradients="*grads"
        ),
        combined("return x * 2", "part = grad[grad > 0]\npart.mul_(2)\nreturn grad * 2"),
        combined("return x * 2", "total = 0\ntotal += grad.sum()\nreturn grad * total"),
        combined("return x * 2", "return torch.mul(grad, 2, out=torch.empty_like(grad))"),
        # the engine of another name: not a Function
        "import torch\n\n\nclass Op:\n    @staticmethod\n    def backward(ctx, grad):\n        grad *= 2\n"
        "        return grad\n",
        combined("return x * 2", "shape = grad.shape\nshape += (1,)\nreturn grad * 2"),
        # GP326 speaks of saved tensors
        combined("ctx.save_for_backward(x)\nreturn x * x", "(x,) = ctx.saved_tensors\nx.mul_(2)\nreturn grad * x"),
    )
    invalid = (
        Invalid(combined("return x * 2", "grad *= 2\nreturn grad"), (13,)),
        Invalid(combined("return x * 2", "grad.mul_(2)\nreturn grad"), (13,)),
        Invalid(combined("return x * 2", "return grad.mul_(2)"), (13,)),
        Invalid(combined("return x * 2", "grad[grad < 0] = 0\nreturn grad * 2"), (13,)),
        Invalid(combined("return x * 2", "torch.mul(grad, 2, out=grad)\nreturn grad"), (13,)),
        Invalid(combined("return x * 2", "flat = grad.view(-1)\nflat.mul_(2)\nreturn grad"), (14,)),
        Invalid(combined("return x * 2", "grad = grad.contiguous()\ngrad.mul_(2)\nreturn grad"), (14,)),
        Invalid(combined("return x * 2", "F.relu(grad, inplace=True)\nreturn grad * 2"), (13,)),
        Invalid(combined("return x * 2", "grad_x = grad\ngrad_x.neg_()\nreturn grad_x"), (14,)),
        Invalid(combined("return x * 2", "grad.sub_(1).mul_(2)\nreturn grad"), (13,)),
        Invalid(combined("return x * 2", "(grad,) = grads\ngrad *= 2\nreturn grad", gradients="*grads"), (14,)),
        Invalid(combined("return x, x * 2", "first.add_(second)\nreturn first", gradients="first, second"), (13,)),
        Invalid(
            combined("return x, x * 2", "for g in grads:\n    g.mul_(2)\nreturn grads[0]", gradients="*grads"), (14,)
        ),
        Invalid(
            combined("return x, x * 2", "changed = [g.mul_(2) for g in grads]\nreturn changed[0]", gradients="*grads"),
            (13,),
        ),
        Invalid(combined("return x * 2", "if ctx.flip:\n    grad.neg_()\nreturn grad"), (14,)),
        Invalid(
            combined(
                "return x * 1",
                "grad = grad.contiguous()\ndist.all_reduce(grad)\nreturn grad",
                head="import torch.distributed as dist\n\n\n",
            ),
            (17,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """The first write into each incoming gradient of every backward."""
        for function in autograd_functions(file):
            backward = function.backward
            if backward is None:
                continue
            memory = Memory(function, backward)
            for write, origin in _writes(file, backward, Role.GRADIENT, memory):
                yield Hit(
                    write.node,
                    f"backward changes the incoming gradient `{origin.name}` in place ({write.how}): "
                    f"the same tensor may "
                    "be on its way to another branch, which then silently gets the changed values. "
                    "Work on a new tensor.",
                    severity=Severity.NOTE if is_collective(write) else None,
                    confidence=None if origin.certain else Confidence.MEDIUM,
                    hypothesis={"function": function.name, "gradient": origin.name, "symbol": file.symbol(write.node)},
                    related=((backward, "the gradient is handed in here"),),
                    fix=_fix(file, write, origin),
                )


class SavedTensorChangedInPlace(Rule):
    """Backward writes into a tensor that forward saved."""

    id = "GP326"
    name = "saved-tensor-changed-in-place"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    fix = FixSafety.SAFE
    triggers = ("saved_tensors", "saved_variables")
    documentation = Documentation(
        what_it_does=(
            "Finds an in-place operation, in the backward of a custom `torch.autograd.Function`, on a tensor out of "
            "`ctx.saved_tensors` that is an input or an output of forward. For a tensor that only forward knew, it is "
            "a note: there, only a second backward through the same graph fails."
        ),
        why_is_this_bad=(
            "An input that was saved is the caller's own tensor, not a copy. Whatever made it may need it for its own "
            "gradient (`exp` saves its result): backward then raises `modified by an inplace operation`, depending on "
            "what stands before the Function. Where the input is a leaf, a weight for instance, its "
            "values are silently "
            "overwritten."
        ),
        faulty_example=combined(
            "ctx.save_for_backward(gate, up)\nreturn gate * up",
            "gate, up = ctx.saved_tensors\ngrad_gate = grad * up\nup.copy_(grad * gate)\nreturn grad_gate, up",
            "gate, up",
        ),
        right_example=combined(
            "ctx.save_for_backward(gate, up)\nreturn gate * up",
            "gate, up = ctx.saved_tensors\nreturn grad * up, grad * gate",
            "gate, up",
        ),
        fix_safety="Safe: the same values are computed into a copy of the saved tensor.",
    )
    valid = (
        combined(
            "ctx.save_for_backward(x)\nreturn x * x",
            "(x,) = ctx.saved_tensors\nx = x.clone()\nx.mul_(2)\nreturn grad * x",
        ),
        combined("ctx.save_for_backward(x)\nreturn x * x", "(x,) = ctx.saved_tensors\ny = x * 2\ny *= grad\nreturn y"),
        combined(
            "ctx.save_for_backward(x)\nreturn x * x",
            "x = ctx.saved_tensors[0]\nout = torch.zeros_like(x)\nout[0] = 1\nreturn grad * out",
        ),
    )
    invalid = (
        Invalid(
            combined("ctx.save_for_backward(x)\nreturn x * x", "(x,) = ctx.saved_tensors\nx.mul_(2)\nreturn grad * x"),
            (15,),
        ),
        Invalid(
            combined("ctx.save_for_backward(x)\nreturn x * x", "x = ctx.saved_tensors[0]\nx *= 2\nreturn grad * x"),
            (15,),
        ),
        Invalid(
            combined("ctx.save_for_backward(x)\nreturn x * x", "return ctx.saved_tensors[0].mul_(2).mul_(grad)"), (14,)
        ),
        Invalid(
            combined(
                "y = x.exp()\nctx.save_for_backward(y)\nreturn y",
                "saved = ctx.saved_tensors\ny = saved[0]\nreturn y.mul_(grad)",
            ),
            (17,),
        ),
        Invalid(
            combined(
                "ctx.save_for_backward(x, w)\nreturn x * w",
                "x, w = ctx.saved_tensors\nx[x < 0] = 0\nw.zero_()\nreturn grad * w, grad * x",
                "x, w",
            ),
            (15, 16),
        ),
        # only notes: which of them it is can't be seen, or nobody but forward knew it
        Invalid(
            combined(
                "kept = [x]\nctx.save_for_backward(*kept)\nreturn x * x",
                "(x,) = ctx.saved_tensors\nreturn x.mul_(grad)",
            ),
            (16,),
        ),
        Invalid(
            combined(
                "mask = (x > 0).float()\nctx.save_for_backward(mask)\nreturn x * mask",
                "(mask,) = ctx.saved_tensors\nreturn mask.mul_(grad)",
            ),
            (16,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """The first write into each saved tensor of every backward."""
        for function in autograd_functions(file):
            backward = function.backward
            if backward is None:
                continue
            memory = Memory(function, backward)
            for write, origin in _writes(file, backward, Role.SAVED, memory):
                known = _saved_as(function, origin)
                whose = "input" if known in function.input_names else "output" if known in _outputs(function) else None
                told = f"the {whose} `{known}`" if whose else "a tensor"
                yield Hit(
                    write.node,
                    f"backward changes `{origin.name}` in place ({write.how}), which is {told} that "
                    f"forward saved and not "
                    "a copy of it: whoever else needs those values gets an error or wrong numbers.",
                    severity=None if whose else Severity.NOTE,
                    confidence=None if origin.certain else Confidence.MEDIUM,
                    hypothesis={"function": function.name, "tensor": origin.name, "symbol": file.symbol(write.node)},
                    related=tuple((save.call, "saved here") for save in function.saves or ()),
                    fix=_fix(file, write, origin),
                )


def _saved_as(function: AutogradFunction, origin: Origin) -> str | None:
    """What forward calls a saved tensor, if it saves at one place only."""
    saves = function.saves or []
    if len(saves) != 1 or saves[0].count is None or origin.index is None or origin.index >= len(saves[0].names):
        return None
    return saves[0].names[origin.index]


def _outputs(function: AutogradFunction) -> frozenset[str]:
    """The names that forward returns."""
    if function.forward is None:
        return frozenset()
    found: set[str] = set()
    for node in function.file.returns_of(function.forward):
        items = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        found |= {item.id for item in items if isinstance(item, ast.Name)}
    return frozenset(found)
