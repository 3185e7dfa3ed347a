"""A backward that expects the incoming gradient to lie in memory in order (GP317)."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.autograd_functions import AutogradFunction, autograd_functions
from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.function_memory import Memory, Role
from analyzer.gradient_returns import own_nodes
from analyzer.rules.autograd_examples import combined
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import dotted_name

# Parts of a dotted name that speak of a compiled extension: `_C.forward`, `lltm_cuda.backward`, `swish_ext.bwd`.
_EXTENSION_PARTS = ("c", "_c", "cuda", "ext", "extension", "kernel", "kernels", "triton", "cpp", "hip")


class GradientLayout(Rule):
    """Backward takes the incoming gradient for contiguous."""

    id = "GP317"
    name = "gradient-taken-for-contiguous"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    fix = FixSafety.SAFE
    triggers = ("Function",)
    documentation = Documentation(
        what_it_does=(
            "Finds `grad.view(…)` on the incoming gradient of a backward, and an incoming gradient that is given to a "
            "Triton kernel without its strides. A gradient that is given to a compiled extension is a note. "
            "`reshape`, `contiguous()`, a new dtype, and views that only add axes are left alone."
        ),
        why_is_this_bad=(
            "Nothing promises the layout of an incoming gradient: behind `sum(0)` it is expanded with strides of zero, "
            "behind `permute` it is transposed, although every input of forward was contiguous. `view` raises then "
            "(measured behind `sum(0)` and `sum(1)`); a kernel that counts on order reads the wrong numbers."
        ),
        faulty_example=combined(
            "ctx.save_for_backward(x)\nreturn x * 2",
            "rows = grad.view(grad.shape[0], -1)\nreturn (2 * rows).reshape(grad.shape)",
        ),
        right_example=combined(
            "ctx.save_for_backward(x)\nreturn x * 2",
            "rows = grad.reshape(grad.shape[0], -1)\nreturn (2 * rows).reshape(grad.shape)",
        ),
        fix_safety="Safe: `reshape` is `view` wherever `view` works, and `contiguous()` copies only where it has to.",
    )
    valid = (
        combined("return x * 2", "return grad.reshape(-1).view_as(grad) * 2"),
        combined("return x * 2", "return grad.contiguous().view(-1)"),
        # a decorator of its own: it may well make everything contiguous
        combined("return x * 2", "return grad.view(-1)", decorator="ensure_contiguous"),
        combined("return x * 2", "grad = grad.contiguous()\nreturn grad.view(-1)"),
        combined("return x * 2", "return (grad * 2).view(-1)"),
        combined("return x * 2", "return grad.view(torch.int32)"),
        combined("return x * 2", "return grad.view(*grad.shape, 1)"),
        combined("return x * 2", "return grad.view(-1, 1, 1)"),
        combined("ctx.save_for_backward(x)\nreturn x * 2", "(x,) = ctx.saved_tensors\nreturn x.view(-1) * grad"),
        combined("return x * 2", "out = torch.empty_like(grad)\nkernel[(1,)](grad, out, grad.stride(0))\nreturn out"),
        combined("return x * 2", "return my_cuda.backward(grad.contiguous())"),
        combined("return x * 2", "return my_cuda.backward(torch.empty_like(grad), grad * 2)"),
        combined("return x * 2", "return helpers.backward(grad)"),
        combined("return x * 2", "return torch.ops.my_cuda.backward(grad)"),
        # a backward that always raises says itself that it has no gradient
        combined("return x * 2", "grad.view(-1)\nraise NotImplementedError"),
        combined("return x * 2", "return grad.view(dtype=torch.int32)"),
        combined("return x * 2", "return grad.view(ctx.x.dtype)"),
        combined("return x * 2", "if not grad.is_contiguous():\n    grad = grad.contiguous()\nreturn grad.view(-1)"),
    )
    invalid = (
        Invalid(combined("return x * 2", "return grad.view(-1)"), (13,)),
        Invalid(combined("return x * 2", "g = grad\nrows = g.view(g.shape[0], -1)\nreturn rows"), (14,)),
        Invalid(combined("return x * 2", "return grad.view(x.shape)", gradients="grad"), (13,)),
        Invalid(combined("return x * 2", "return first.view(2, -1) + second", gradients="first, second"), (13,)),
        Invalid(combined("return x * 2", "return grad.transpose(0, 1).view(-1)"), (13,)),
        Invalid(
            combined("return x * 2", "out = torch.empty_like(grad)\nkernel[(1,)](grad, out, 64)\nreturn out"), (14,)
        ),
        # only a note: the extension may well go by strides
        Invalid(combined("return x * 2", "return my_cuda.backward(grad)"), (13,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every use of an incoming gradient that depends on its layout, in every backward."""
        for function in autograd_functions(file):
            backward = function.backward
            if backward is None or function.only_raises or function.is_wrapped or _asks_for_layout(function):
                continue
            memory = Memory(function, backward)
            for node in own_nodes(backward):
                if isinstance(node, ast.Call):
                    file.check_deadline()
                    yield from _in_call(function, node, memory)


def _asks_for_layout(function: AutogradFunction) -> bool:
    assert function.backward is not None
    asked = {"is_contiguous", "stride"}
    return any(isinstance(node, ast.Attribute) and node.attr in asked for node in own_nodes(function.backward))


def _in_call(function: AutogradFunction, call: ast.Call, memory: Memory) -> Iterator[Hit]:
    file = function.file
    if isinstance(call.func, ast.Attribute) and call.func.attr == "view":
        if _may_merge_axes(file, call) and _is_gradient(memory, call.func.value):
            shown = file.source(call.func.value)
            yield Hit(
                call,
                f"`{shown}.view(…)` raises when the incoming gradient is not contiguous, as it is behind `sum(0)` or a "
                "permutation. Use `reshape`.",
                hypothesis={"function": function.name, "gradient": shown, "symbol": file.symbol(call)},
                related=((function.backward, "it comes in here"),) if function.backward is not None else (),
                fix=_with_reshape(file, call),
            )
        return
    for argument in call.args:
        if isinstance(argument, ast.Name) and _is_gradient(memory, argument) and _is_kernel(file, call):
            triton = isinstance(call.func, ast.Subscript)
            yield Hit(
                argument,
                f"`{argument.id}` goes to {'a Triton kernel' if triton else 'a compiled extension'} "
                f"as it came in: when "
                "the incoming gradient is expanded or transposed, a kernel that counts on its order "
                "reads wrong numbers. "
                "Pass its strides, or call `contiguous()` first.",
                severity=None if triton else Severity.NOTE,
                confidence=None if triton else Confidence.LOW,
                hypothesis={"function": function.name, "gradient": argument.id, "symbol": file.symbol(call)},
                fix=Rewrite(FixSafety.SAFE, (Replacement(argument, f"{argument.id}.contiguous()"),)),
            )
            return


def _is_gradient(memory: Memory, expression: ast.expr) -> bool:
    """Whether this is the incoming gradient itself or a view of it; what may have been copied counts as copied."""
    origin = memory.origin(expression)
    return origin is not None and origin.role is Role.GRADIENT and origin.certain


def _may_merge_axes(file: FileContext, call: ast.Call) -> bool:
    """A view that only adds axes of one always works, and so does another dtype of the same width."""
    sizes = list(call.args[0].elts) if len(call.args) == 1 and isinstance(call.args[0], ast.Tuple) else list(call.args)
    if not sizes or any(isinstance(size, ast.Starred) for size in sizes):
        return False
    if (file.qualified_name(sizes[0]) or "").startswith("torch.") or (
        isinstance(sizes[0], ast.Attribute) and (sizes[0].attr == "dtype")
    ):
        return False
    others = [size for size in sizes if not (isinstance(size, ast.Constant) and size.value == 1)]
    return len(others) > 1 or len(sizes) == 1


def _with_reshape(file: FileContext, call: ast.Call) -> Rewrite | None:
    assert isinstance(call.func, ast.Attribute)
    return Rewrite(FixSafety.SAFE, (Replacement(call.func, f"{file.operand_source(call.func.value)}.reshape"),))


def _is_kernel(file: FileContext, call: ast.Call) -> bool:
    """`kernel[grid](…)`, or a function out of something that is named like a compiled extension."""
    if isinstance(call.func, ast.Subscript):
        return True
    dotted = file.qualified_name(call.func) or dotted_name(call.func) or ""
    if dotted.startswith("torch."):
        return False
    # The module itself counts, not the package around it: `liger_kernel.ops.utils` is plain Python.
    owner = dotted.rpartition(".")[0].rpartition(".")[2].lower()
    return owner in _EXTENSION_PARTS or bool(set(owner.split("_")) & set(_EXTENSION_PARTS))
