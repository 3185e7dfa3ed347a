"""What a custom Function keeps for backward: counted wrongly, or kept where autograd can't watch it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from analyzer.autograd_functions import AutogradFunction, Save, Unpack, autograd_functions
from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.gradient_returns import own_nodes
from analyzer.kept_values import assigned_attributes, parts, values_are_read
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import FunctionNode, dotted_name

_HEAD = "import torch\nfrom torch.autograd import Function\n\n\n"


def _class(forward: str, backward: str, inputs: str = "x, weight", base: str = "Function") -> str:
    def indented(text: str) -> str:
        return "".join(f"        {line}\n" for line in text.splitlines())

    return (
        f"{_HEAD}class Scale({base}):\n    @staticmethod\n    def forward(ctx, {inputs}):\n{indented(forward)}\n"
        f"    @staticmethod\n    def backward(ctx, grad):\n{indented(backward)}"
    )


def _split(setup: str, backward: str) -> str:
    def indented(text: str) -> str:
        return "".join(f"        {line}\n" for line in text.splitlines())

    return (
        f"{_HEAD}class Scale(Function):\n    @staticmethod\n    def forward(x, weight):\n        return x * weight\n\n"
        f"    @staticmethod\n    def setup_context(ctx, inputs, output):\n{indented(setup)}\n"
        f"    @staticmethod\n    def backward(ctx, grad):\n{indented(backward)}"
    )


_GRADIENTS = "return grad * weight, grad * x"


class SavedTensorCount(Rule):
    """Backward takes apart another number of saved tensors than forward saved."""

    id = "GP301"
    name = "saved-tensor-count"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    triggers = ("saved_tensors", "saved_variables")
    documentation = Documentation(
        what_it_does=(
            "Compares the number of names that `ctx.saved_tensors` is unpacked into with the number of tensors given "
            "to `ctx.save_for_backward`, in forward or in `setup_context`. Where the saving has branches, each number "
            "that can be saved is right. Starred arguments and a context that is handed to another function are "
            "not counted."
        ),
        why_is_this_bad=(
            "Python raises `ValueError: not enough values to unpack`, and only in the backward pass. Until then "
            "everything works, so tests without a backward pass see nothing."
        ),
        faulty_example=_class(
            "ctx.save_for_backward(x)\nreturn x * weight", f"x, weight = ctx.saved_tensors\n{_GRADIENTS}"
        ),
        right_example=_class(
            "ctx.save_for_backward(x, weight)\nreturn x * weight", f"x, weight = ctx.saved_tensors\n{_GRADIENTS}"
        ),
        fix_safety=(
            "Unsafe, because it goes by the names: saves the inputs that backward expects after the last saved tensor."
        ),
    )
    valid = (
        _class(
            "ctx.save_for_backward(x, weight)\nreturn x * weight",
            f"x, *rest = ctx.saved_tensors\nweight = rest[0]\n{_GRADIENTS}",
        ),
        _class(
            "saved = [x, weight]\nctx.save_for_backward(*saved)\nreturn x * weight",
            f"x, weight = ctx.saved_tensors\n{_GRADIENTS}",
        ),
        _class(
            "if ctx.needs_input_grad[1]:\n    ctx.save_for_backward(x, weight)\nelse:\n"
            "    ctx.save_for_backward(weight)\nreturn x * weight",
            "if ctx.needs_input_grad[1]:\n    x, weight = ctx.saved_tensors\n    return grad * weight, grad * x\n"
            "(weight,) = ctx.saved_tensors\nreturn grad * weight, None",
        ),
        _split("x, weight = inputs\nctx.save_for_backward(x, weight)", f"x, weight = ctx.saved_tensors\n{_GRADIENTS}"),
        _class("keep(ctx, x, weight)\nreturn x * weight", f"x, weight = ctx.saved_tensors\n{_GRADIENTS}"),
        _class("return x * weight", f"x, weight = ctx.saved_tensors\n{_GRADIENTS}", base="Base"),
        _class(
            "ctx.save_for_backward(x, weight)\nreturn x * weight",
            f"saved = ctx.saved_tensors\nx, weight = saved\n{_GRADIENTS}",
        ),
        # the class is passed by hand to a static method
        _class(
            "ctx.save_for_backward(x, weight)\nreturn x * weight", f"x, weight = ctx.saved_tensors\n{_GRADIENTS}"
        ).replace("forward(ctx, ", "forward(cls, ctx, "),
        _class(
            "ctx.save_for_backward(x, weight)\nreturn x * weight",
            "x = ctx.saved_tensors[0]\nweight = ctx.saved_tensors[1]\n" + _GRADIENTS,
        ),
    )
    invalid = (
        Invalid(
            _class("ctx.save_for_backward(x)\nreturn x * weight", f"x, weight = ctx.saved_tensors\n{_GRADIENTS}"), (13,)
        ),
        Invalid(_class("return x * weight", f"x, weight = ctx.saved_tensors\n{_GRADIENTS}"), (12,)),
        Invalid(
            _split("x, weight = inputs\nctx.save_for_backward(x)", f"x, weight = ctx.saved_tensors\n{_GRADIENTS}"),
            (17,),
        ),
        Invalid(
            _class(
                "ctx.save_for_backward(x, weight)\nreturn x * weight", "(x,) = ctx.saved_tensors\nreturn grad, grad * x"
            ),
            (13,),
        ),
        Invalid(
            _class(
                "ctx.save_for_backward(x)\nreturn x * weight",
                "x = ctx.saved_tensors[0]\nweight = ctx.saved_tensors[1]\n" + _GRADIENTS,
            ),
            (14,),
        ),
        Invalid(
            _class(
                "ctx.save_for_backward(x)\nreturn x * weight",
                f"saved = ctx.saved_tensors\nx, weight = saved\n{_GRADIENTS}",
            ),
            (14,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every unpacking in every backward whose class is wholly in this file."""
        for function in autograd_functions(file):
            saves = function.saves if function.is_readable else None
            if saves is None:
                continue
            counts = [save.count for save in saves if save.count is not None]
            if len(counts) != len(saves):
                continue
            for unpack in function.unpacks:
                if counts and (unpack.count in counts if unpack.exact else unpack.count <= max(counts)):
                    continue
                yield _count_hit(function, saves, unpack)


def _count_hit(function: AutogradFunction, saves: list[Save], unpack: Unpack) -> Hit:
    def told(count: int, names: Iterable[str]) -> str:
        listed = ", ".join(names)
        return f"{count} tensor{'s' if count != 1 else ''}" + (f" ({listed})" if listed else "")

    if unpack.names:
        taken = f"backward unpacks {told(unpack.count, unpack.names)} from ctx.saved_tensors"
    else:
        taken = f"backward reads ctx.saved_tensors[{unpack.count - 1}]"
    saver = "setup_context" if function.setup_context is not None else "forward"
    if saves:
        kept = " or ".join(dict.fromkeys(told(save.count or 0, save.names) for save in saves))
        message = f"{taken}, but {saver} saves {kept}"
    else:
        message = f"{taken}, but {saver} never calls ctx.save_for_backward"
    return Hit(
        unpack.node,
        message,
        hypothesis={
            "function": function.name,
            "unpacked": unpack.count,
            "saved": sorted({save.count or 0 for save in saves}),
        },
        related=tuple((save.call, "saved here") for save in saves),
        fix=_saved_too(function, saves, unpack),
    )


def _saved_too(function: AutogradFunction, saves: list[Save], unpack: Unpack) -> Rewrite | None:
    """Save what backward expects after the last saved tensor, where forward has inputs of these names."""
    if len(saves) != 1 or not unpack.exact or not saves[0].names:
        return None
    save, count = saves[0], len(saves[0].names)
    missing = unpack.names[count:]
    saver = function.saver
    assert saver is not None
    known = {argument.arg for argument in saver.args.args} | set(function.file.values.bindings(saver).names())
    if unpack.names[:count] != save.names or not missing or not set(missing) <= known & set(function.input_names):
        return None
    text = f"{function.file.source(save.call.func)}({', '.join(unpack.names)})"
    return Rewrite(FixSafety.UNSAFE, (Replacement(save.call, text),))


class SavedTensorOrder(Rule):
    """Backward takes the saved tensors apart in another order than forward saved them in."""

    id = "GP333"
    name = "saved-tensor-order"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    triggers = ("saved_tensors", "saved_variables")
    documentation = Documentation(
        what_it_does=(
            "Finds names that change places between `ctx.save_for_backward(x, weight)` and "
            "`weight, x = ctx.saved_tensors`. Backward may use other names than forward; only the same names in "
            "another "
            "order count."
        ),
        why_is_this_bad=(
            "Each name then holds the other tensor. Where the shapes agree, the gradient is silently wrong; where they "
            "don't, something further down complains about a shape."
        ),
        faulty_example=_class(
            "ctx.save_for_backward(x, weight)\nreturn x * weight.exp()",
            "weight, x = ctx.saved_tensors\nreturn grad * weight.exp(), grad * x * weight.exp()",
        ),
        right_example=_class(
            "ctx.save_for_backward(x, weight)\nreturn x * weight.exp()",
            "x, weight = ctx.saved_tensors\nreturn grad * weight.exp(), grad * x * weight.exp()",
        ),
        fix_safety="Unsafe, because it goes by the names: they are put in the order in which forward saved them.",
    )
    valid = (
        _class("ctx.save_for_backward(x, weight)\nreturn x", f"x, weight = ctx.saved_tensors\n{_GRADIENTS}"),
        _class("ctx.save_for_backward(x, weight)\nreturn x", f"a, b = ctx.saved_tensors\n{_GRADIENTS}"),
        _class("ctx.save_for_backward(x, weight)\nreturn x", f"weight, other = ctx.saved_tensors\n{_GRADIENTS}"),
        _class("ctx.save_for_backward(x)\nreturn x", f"weight, x = ctx.saved_tensors\n{_GRADIENTS}"),
        _class(
            "if ctx.flag:\n    ctx.save_for_backward(x, weight)\nelse:\n    ctx.save_for_backward(weight, x)\nreturn x",
            f"weight, x = ctx.saved_tensors\n{_GRADIENTS}",
        ),
    )
    invalid = (
        Invalid(
            _class("ctx.save_for_backward(x, weight)\nreturn x", f"weight, x = ctx.saved_tensors\n{_GRADIENTS}"), (13,)
        ),
        Invalid(
            _class("ctx.save_for_backward(x, y, weight)\nreturn x", f"x, weight, y = ctx.saved_tensors\n{_GRADIENTS}"),
            (13,),
        ),
        Invalid(
            _split(
                "x, weight = inputs\nctx.save_for_backward(x, weight)", f"weight, x = ctx.saved_tensors\n{_GRADIENTS}"
            ),
            (17,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every unpacking of what one call has saved."""
        for function in autograd_functions(file):
            saves = function.saves if function.is_readable else None
            if saves is None or len(saves) != 1 or saves[0].count is None:
                continue
            for unpack in function.unpacks:
                if len(unpack.names) != saves[0].count or unpack.names == saves[0].names:
                    continue
                moved = {name for name, saved in zip(unpack.names, saves[0].names, strict=True) if name != saved}
                # Names that go round among themselves; a new name among them may be a better name for the same tensor.
                if len(moved) > 1 and moved <= set(saves[0].names):
                    yield _order_hit(function, saves[0], unpack)


def _order_hit(function: AutogradFunction, save: Save, unpack: Unpack) -> Hit:
    target = unpack.node.targets[0] if isinstance(unpack.node, ast.Assign) else None
    items = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
    replaced = tuple(Replacement(item, name) for item, name in zip(items, save.names, strict=False))
    return Hit(
        unpack.node,
        f"backward unpacks {', '.join(unpack.names)}, and forward has saved {', '.join(save.names)}: the names hold "
        f"each "
        "other's tensors",
        hypothesis={
            "function": function.name,
            "unpacked": list(unpack.names),
            "saved": list(save.names),
            "symbol": function.file.symbol(unpack.node),
        },
        related=((save.call, "saved here"),),
        fix=Rewrite(FixSafety.UNSAFE, replaced) if replaced else None,
    )


class TensorOnContext(Rule):
    """An input or output tensor is kept as an attribute of ctx instead of through save_for_backward."""

    id = "GP302"
    name = "tensor-on-context"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("gradcheck", "finding_search", "memory")
    torch_versions = "2.13"
    fix = FixSafety.SAFE
    triggers = ("Function",)
    documentation = Documentation(
        what_it_does=(
            "Finds `ctx.name = tensor` where the tensor is an input of forward for which backward returns a gradient, "
            "or a result that forward returns. Shapes, numbers, flags, masks without a gradient, intermediate values "
            "and tensors of which backward reads only the shape or type are left alone."
        ),
        why_is_this_bad=(
            "Autograd can't watch what it was not given. When the tensor is changed in place before backward, the "
            "gradient is computed from the new values without a word (20 instead of 2 in our measurement), where a "
            "saved tensor raises. A result kept on ctx refers to its own graph, a cycle that keeps memory until the "
            "garbage collector runs. Offloading and checkpointing of saved tensors pass it by."
        ),
        faulty_example=_class(
            "ctx.x = x\nctx.weight = weight\nreturn x * weight", "return grad * ctx.weight, grad * ctx.x"
        ),
        right_example=_class(
            "ctx.save_for_backward(x, weight)\nreturn x * weight", f"x, weight = ctx.saved_tensors\n{_GRADIENTS}"
        ),
        fix_safety=(
            "Safe: `ctx.save_for_backward` takes the place of the assignments, and backward reads "
            "`ctx.saved_tensors`. Offered "
            "where nothing else is saved, because there can be one call only."
        ),
    )
    valid = (
        _class(
            "ctx.shape = x.shape\nctx.save_for_backward(x, weight)\nreturn x * weight",
            f"x, weight = ctx.saved_tensors\n{_GRADIENTS}",
        ),
        _class("ctx.scale = scale\nreturn x * scale", "return grad * ctx.scale, None", inputs="x, scale"),
        _class("ctx.mask = mask\nreturn x * mask", "return grad * ctx.mask, None", inputs="x, mask"),
        _class("ctx.dim = dim\nreturn x.sum(dim)", "return grad.unsqueeze(ctx.dim), None", inputs="x, dim: int"),
        _class("ctx.x = x\nreturn x.sum()", "return grad.expand(ctx.x.shape)", inputs="x"),
        _class("ctx.x = x\nreturn x.sum()", "return torch.zeros_like(ctx.x) + grad", inputs="x"),
        _class(
            "noise = torch.rand_like(x)\nctx.noise = noise\nreturn x * noise", "return grad * ctx.noise", inputs="x"
        ),
        _class("ctx.size = n, m\nreturn x * 2", "dn = None\nreturn grad * ctx.size[0], dn, dn", inputs="x, n, m"),
        _class("ctx.run = run\nreturn run(x)", "return ctx.run(grad), None", inputs="x, run"),
        _class(
            "ctx.state = torch.get_rng_state()\nreturn x", "torch.set_rng_state(ctx.state)\nreturn grad", inputs="x"
        ),
        _split("x, weight = inputs\nctx.save_for_backward(x, weight)", f"x, weight = ctx.saved_tensors\n{_GRADIENTS}"),
    )
    invalid = (
        Invalid(_class("ctx.x = x\nreturn x * x", "return 2 * grad * ctx.x", inputs="x"), (8,)),
        Invalid(_class("y = torch.exp(x)\nctx.y = y\nreturn y", "return grad * ctx.y", inputs="x"), (9,)),
        Invalid(
            _class("ctx.x, ctx.weight = x, weight\nreturn x * weight", "return grad * ctx.weight, grad * ctx.x"), (8, 8)
        ),
        Invalid(
            _class("ctx.kept = (x, weight)\nreturn x * weight", "x, weight = ctx.kept\nreturn grad * weight, grad * x"),
            (8,),
        ),
        Invalid(
            _split("x, weight = inputs\nctx.x = x\nctx.weight = inputs[1]", "return grad * ctx.weight, grad * ctx.x"),
            (13, 14),
        ),
        Invalid(
            _split(
                "ctx.y = output\nctx.save_for_backward(*inputs)",
                "x, weight = ctx.saved_tensors\nreturn grad * ctx.y / x, grad * x",
            ),
            (12,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every assignment to an attribute of the context, where the context is filled."""
        for function in autograd_functions(file):
            saver = function.saver
            if saver is None or not function.is_readable:
                continue
            found = list(_kept(function, saver))
            rewrite = _saved_instead(function, saver, found)
            for kept in found:
                # One rewrite saves them all, because there can be one call only.
                yield _kept_hit(function, kept, rewrite if kept is found[0] else None)


@dataclass(frozen=True, slots=True)
class _Kept:
    """One tensor on the context; `what` is `input` or `output`."""

    statement: ast.Assign
    attribute: str
    item: ast.expr
    what: str


def _kept(function: AutogradFunction, saver: FunctionNode) -> Iterator[_Kept]:
    """The tensors that are kept on the context, in source order, one for each attribute."""
    context = function.context_name(saver)
    tensors = _Tensors(function)
    statements = [node for node in own_nodes(saver) if isinstance(node, ast.Assign)]
    for statement in sorted(statements, key=lambda node: (node.lineno, node.col_offset)):
        for attribute, value in assigned_attributes(statement, context):
            for item in parts(value):
                what = tensors.role(item)
                # An output on ctx is a cycle in any case; an input matters when backward reads its values.
                if what is not None and (what == "output" or values_are_read(function, attribute)):
                    yield _Kept(statement, attribute, item, what)
                    break


def _kept_hit(function: AutogradFunction, kept: _Kept, rewrite: Rewrite | None) -> Hit:
    name = ast.unparse(kept.item)
    if kept.what == "output":
        message = (
            f"the output {name} is kept as ctx.{kept.attribute}: it then refers to its own graph, and a change of its "
            "values before backward goes unnoticed; use ctx.save_for_backward"
        )
    else:
        message = (
            f"the input {name} is kept as ctx.{kept.attribute}: when it is changed in place before backward, the "
            "gradient is silently computed from the new values; use ctx.save_for_backward"
        )
    return Hit(
        kept.statement,
        message,
        severity=Severity.NOTE if _is_deleted(function, kept.attribute) else None,
        hypothesis={
            "function": function.name,
            "attribute": kept.attribute,
            "tensor": name,
            "role": kept.what,
            "symbol": function.file.symbol(kept.statement),
        },
        related=((function.backward, "backward reads it"),) if function.backward is not None else (),
        fix=rewrite,
    )


def _saved_instead(function: AutogradFunction, saver: FunctionNode, found: list[_Kept]) -> Rewrite | None:
    """One `ctx.save_for_backward` in the place of all assignments, and `ctx.saved_tensors[i]` wherever they are "
    "read."""
    file, backward = function.file, function.backward
    context = function.context_name(saver)
    if backward is None or not found or function.saves is None or function.saves:
        return None
    replacements: list[Replacement] = []
    for position, kept in enumerate(found):
        target = kept.statement.targets[0]
        plain = len(kept.statement.targets) == 1 and isinstance(target, ast.Attribute)
        if not plain or kept.statement.value is not kept.item or file.parent(kept.statement) is not saver:
            return None
        for node in file.nodes_in(function.node, ast.Attribute):
            if node.attr != kept.attribute or node is target:
                continue
            owner = file.enclosing_function(node)
            is_read = isinstance(node.ctx, ast.Load) and owner is backward
            if not is_read or dotted_name(node.value) != function.context_name(backward):
                return None
            replacements.append(Replacement(node, f"{file.source(node.value)}.saved_tensors[{position}]"))
    names = ", ".join(file.source(kept.item) for kept in found)
    for kept in found:
        last = kept is found[-1]
        replacements.append(Replacement(kept.statement, f"{context}.save_for_backward({names})" if last else ""))
    return Rewrite(FixSafety.SAFE, tuple(replacements))


class _Tensors:
    """Which names in the method that fills the context stand for differentiable inputs or for outputs."""

    def __init__(self, function: AutogradFunction) -> None:
        self._function = function
        self._inputs: dict[str, int] = {}
        self._outputs: set[str] = set()
        self._inputs_name: str | None = None
        saver = function.saver
        assert saver is not None
        if function.setup_context is None:
            self._inputs = {name: index for index, name in enumerate(function.input_names)}
            self._outputs = set(_returned_names(saver))
        else:
            parameters = [argument.arg for argument in saver.args.args]
            if len(parameters) == 3:
                self._inputs_name = parameters[1]
                self._outputs = {parameters[2]}
        for node in own_nodes(saver):
            if isinstance(node, ast.Assign):
                self._assigned(node)

    def _assigned(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                # A name that is bound anew no longer is the input.
                self._inputs.pop(target.id, None)
                continue
            if not isinstance(target, (ast.Tuple, ast.List)) or not isinstance(node.value, ast.Name):
                continue
            names = [item.id if isinstance(item, ast.Name) else None for item in target.elts]
            if node.value.id == self._inputs_name:
                self._inputs.update({name: index for index, name in enumerate(names) if name is not None})

    def role(self, value: ast.expr) -> str | None:
        """`input` or `output` for a tensor of that kind, None for anything else."""
        if (
            isinstance(value, ast.Subscript)
            and isinstance(value.value, ast.Name)
            and isinstance(value.slice, ast.Constant)
        ):
            if value.value.id == self._inputs_name and isinstance(value.slice.value, int):
                return "input" if self._function.receives_gradient(value.slice.value) else None
            return None
        if not isinstance(value, ast.Name):
            return None
        if value.id in self._inputs and self._function.receives_gradient(self._inputs[value.id]):
            return "input"
        return "output" if value.id in self._outputs and value.id not in self._function.input_names else None


def _returned_names(function: FunctionNode) -> Iterator[str]:
    """Names that forward returns and that it has computed by a call or by arithmetic."""
    computed = {
        target.id
        for node in own_nodes(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Call, ast.BinOp, ast.UnaryOp))
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in own_nodes(function):
        if isinstance(node, ast.Return) and node.value is not None:
            # Only the first of several results is certainly a tensor.
            first = node.value.elts[0] if isinstance(node.value, ast.Tuple) and node.value.elts else node.value
            if isinstance(first, ast.Name) and first.id in computed:
                yield first.id


def _is_deleted(function: AutogradFunction, attribute: str) -> bool:
    """`del ctx.name`, `ctx.name = None` or `ctx.name.pop()` in backward: the author knows what the reference costs."""
    backward = function.backward
    if backward is None:
        return False
    for node in own_nodes(backward):
        if isinstance(node, ast.Attribute) and node.attr == attribute:
            parent = function.file.parent(node)
            if not isinstance(node.ctx, ast.Load) or (isinstance(parent, ast.Attribute) and parent.attr == "pop"):
                return True
    return False
