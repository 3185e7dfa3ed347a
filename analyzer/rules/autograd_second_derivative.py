"""Functions whose second derivative is silently wrong: backward leaves the graph (GP311), or uses a value that forward
computed and kept (GP321)."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.autograd_functions import AutogradFunction, autograd_functions
from analyzer.context import FileContext
from analyzer.facts import operations
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.function_edits import decorated
from analyzer.function_memory import Memory, Role
from analyzer.function_sources import SourceFinder
from analyzer.gradient_returns import own_nodes
from analyzer.kept_values import assigned_attributes, parts, values_are_read
from analyzer.rules.autograd_examples import combined, second_derivative_free, split
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import terminal_name
from analyzer.values.domain import Kind

_ONCE = "torch.autograd.function.once_differentiable"
_RECOMPUTING = frozenset({"grad", "backward", "enable_grad", "set_grad_enabled", "vjp", "is_grad_enabled"})


def _once_differentiable(function: AutogradFunction) -> Rewrite | None:
    """A second derivative then raises instead of being wrong; the first one stays."""
    spelling = function.file.spelling(_ONCE)
    if spelling is None or function.backward is None:
        return None
    edit = decorated(function.file, function.backward, spelling)
    return Rewrite(FixSafety.UNSAFE, (edit,)) if edit is not None else None


def _handles_it(function: AutogradFunction) -> bool:
    """Whether the author has decided about second derivatives: by a decorator, or by recomputing with gradients on."""
    backward = function.backward
    if backward is None or function.is_once_differentiable or function.only_raises:
        return True
    return any(
        isinstance(node, ast.Call)
        and terminal_name(node.func) in _RECOMPUTING
        and (function.file.qualified_name(node.func) or "torch.autograd").startswith("torch.")
        for node in own_nodes(backward)
    )


class BackwardLeavesGraph(Rule):
    """Backward computes the gradient where autograd does not see it."""

    id = "GP311"
    name = "backward-leaves-graph"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("gradgradcheck", "hvp")
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    triggers = ("Function",)
    documentation = Documentation(
        what_it_does=(
            "Finds the backward of a custom `torch.autograd.Function` that computes its result outside the graph: by "
            "`.numpy()`, `.detach()`, `.data` or `torch.no_grad()` on the incoming gradient or on what was saved, "
            "without `@once_differentiable`. A backward that recomputes with gradients on, or that asks "
            "`torch.is_grad_enabled()`, is left alone. A call of a compiled extension is a note."
        ),
        why_is_this_bad=(
            "With `create_graph=True` (gradient penalties, Hessians, forces of a potential, MAML) backward is itself "
            "differentiated. What happens outside the graph counts as constant there, so that the second derivative is "
            "silently wrong: 2 instead of 8 in our measurement. `.numpy()` on a gradient raises then. "
            "`@once_differentiable` says that there is no second derivative: `backward()` through the gradient raises "
            "(`torch.autograd.grad` still passes it by without a word in torch 2.13)."
        ),
        faulty_example=combined(
            "ctx.save_for_backward(x)\nreturn x ** 4",
            "(x,) = ctx.saved_tensors\nwith torch.no_grad():\n    result = 4 * x ** 3 * grad\nreturn result",
        ),
        right_example=combined(
            "ctx.save_for_backward(x)\nreturn x ** 4", "(x,) = ctx.saved_tensors\nreturn 4 * x ** 3 * grad"
        ),
        fix_safety=(
            "Unsafe: takes `.detach()` or `.data` away, which keeps the values; elsewhere adds "
            "`@once_differentiable`, which "
            "keeps the first derivative and makes `backward()` through it raise instead of being wrong."
        ),
    )
    valid = (
        second_derivative_free(
            combined(
                "ctx.save_for_backward(x)\nreturn x ** 4",
                "(x,) = ctx.saved_tensors\nreturn 4 * x.detach() ** 3 * grad.detach()",
            )
        ),
        combined("ctx.save_for_backward(x)\nreturn x ** 4", "(x,) = ctx.saved_tensors\nreturn 4 * x ** 3 * grad"),
        # a comparison has no derivative that could be lost
        combined(
            "ctx.save_for_backward(x)\nreturn x.relu()", "(x,) = ctx.saved_tensors\nreturn grad * (x > 0).detach()"
        ),
        combined(
            "ctx.save_for_backward(x)\nreturn x.relu()",
            "(x,) = ctx.saved_tensors\nwith torch.no_grad():\n    mask = x > 0\nreturn grad * mask",
        ),
        # recomputes with gradients on
        combined(
            "ctx.run = run\nctx.save_for_backward(x)\nreturn run(x)",
            "x = ctx.saved_tensors[0].detach().requires_grad_()\nwith torch.enable_grad():\n    y = ctx.run(x)\n"
            "return torch.autograd.grad(y, x, grad)[0], None",
            "x, run",
        ),
        # only looked at, not used for the result
        combined("return x * 2", "print(grad.detach().norm().item())\nreturn grad * 2"),
        combined("return x * 2", "if grad.detach().abs().max() > 10:\n    raise ValueError\nreturn grad * 2"),
        # a backward that always raises says itself that it has no gradient
        combined("return x * 2", "raise NotImplementedError"),
        combined("return x * 2", "if grad.detach().any():\n    return grad * 2\nreturn grad + grad"),
        combined("return x * 2", "norm = grad.detach().norm()\nseen.append(norm)\nreturn grad * 2"),
        combined(
            "ctx.save_for_backward(x)\nreturn x ** 4",
            "(x,) = ctx.saved_tensors\nif torch.is_grad_enabled():\n    return 4 * x ** 3 * grad\n"
            "return 4 * x.detach() ** 3 * grad",
        ),
        combined(
            "ctx.save_for_backward(x)\nreturn x.mean()",
            "(x,) = ctx.saved_tensors\nwith torch.no_grad():\n    count = x.shape[0] * x.size(1)\n    sign = x.gt(0)\n"
            "return grad.expand_as(x) / count * sign",
        ),
        combined(
            "ctx.save_for_backward(x)\nreturn x * 2",
            "(x,) = ctx.saved_tensors\nwith torch.no_grad():\n    seen.append(x * 2)\n    kept = x * 3\n"
            "return grad * 2",
        ),
        combined("return x * 2", "ends = ctx.saved_tensors[0].tolist()\nreturn grad[: ends[0]]"),
        combined("return x * 2", "with open('log') as log:\n    result = grad * 2\nreturn result"),
    )
    invalid = (
        Invalid(
            combined(
                "ctx.save_for_backward(x)\nreturn x ** 4",
                "(x,) = ctx.saved_tensors\nwith torch.no_grad():\n    return 4 * x ** 3 * grad",
            ),
            (15,),
        ),
        Invalid(
            combined(
                "ctx.save_for_backward(x)\nreturn x ** 4", "(x,) = ctx.saved_tensors\nreturn 4 * x.detach() ** 3 * grad"
            ),
            (15,),
        ),
        Invalid(
            combined(
                "ctx.save_for_backward(x)\nreturn x ** 4", "(x,) = ctx.saved_tensors\nreturn 4 * x.data ** 3 * grad"
            ),
            (15,),
        ),
        Invalid(combined("return x * 2", "return torch.from_numpy(grad.numpy() * 2)"), (13,)),
        Invalid(
            combined("return x * 2", "return torch.from_numpy(np.asarray(grad) * 2)", head="import numpy as np\n\n\n"),
            (16,),
        ),
        Invalid(combined("return x * 2", "return torch.tensor([v * 2 for v in grad.tolist()])"), (13,)),
        Invalid(combined("return x * 2", "scale = grad.item()\nreturn torch.tensor(2 * scale)"), (13,)),
        Invalid(combined("return x * 2", "g = grad.detach().cpu().numpy()\nreturn torch.from_numpy(g * 2)"), (13,)),
        Invalid(combined("return x * 2", "return grad * 2", decorator="torch.no_grad()"), (13,)),
        Invalid(
            combined(
                "ctx.save_for_backward(x)\nreturn x * x", "x = ctx.saved_tensors[0].detach()\nreturn 2 * x * grad"
            ),
            (14,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """The first place of every backward where the result leaves the graph."""
        for function in autograd_functions(file):
            backward = function.backward
            if backward is None or _handles_it(function):
                continue
            found = min(_departures(function), key=lambda item: item[0].lineno, default=None)
            if found is None:
                continue
            node, how = found
            yield Hit(
                node,
                f"{how}: a second derivative then counts it as constant and is silently wrong (or "
                f"raises). Stay in torch, "
                "or say `@once_differentiable`.",
                hypothesis={"function": function.name, "symbol": file.symbol(node)},
                related=((backward, "this backward is not marked @once_differentiable"),),
                fix=_attached(function, node) or _once_differentiable(function),
            )


def _attached(function: AutogradFunction, node: ast.AST) -> Rewrite | None:
    """The value itself for `x.detach()` and `x.data`, unless it goes on to numpy, which needs a detached one."""
    file, backward = function.file, function.backward
    assert backward is not None
    if any(isinstance(inner, ast.Attribute) and inner.attr == "numpy" for inner in own_nodes(backward)):
        return None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "detach":
        return Rewrite(FixSafety.UNSAFE, (Replacement(node, file.source(node.func.value)),))
    if isinstance(node, ast.Attribute):
        return Rewrite(FixSafety.UNSAFE, (Replacement(node, file.source(node.value)),))
    return None


def _departures(function: AutogradFunction) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Where a value that the result depends on is taken out of the graph."""
    file, backward = function.file, function.backward
    assert backward is not None
    memory = Memory(function, backward)
    used = _used_names(function)
    for decorator in backward.decorator_list:
        if file.qualified_name(decorator.func if isinstance(decorator, ast.Call) else decorator) in _NO_GRAD:
            yield backward, "backward runs under `torch.no_grad()`"
    for node in own_nodes(backward):
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr="detach" | "numpy" | "tolist" | "item" as name)):
                taken, told = value, f"`.{name}()`"
            case ast.Call(func=called, args=[value, *_]) if (file.qualified_name(called) or "").startswith("numpy."):
                taken, told = value, "NumPy"
            case ast.Attribute(value=value, attr="data", ctx=ast.Load()):
                taken, told = value, "`.data`"
            case ast.With():
                if _computes_without_gradients(function, node, memory, used):
                    yield node, "the gradient is computed under `torch.no_grad()`"
                continue
            case _:
                continue
        origin = memory.origin(_unwrapped(taken))
        if origin is None or (told in _AS_NUMBERS and origin.role is not Role.GRADIENT):
            continue  # what is saved and read as numbers are mostly sizes and offsets
        if _reaches_result(file, node, used):
            yield node, f"`{file.source(_unwrapped(taken))}` is taken out of the graph by {told}"


_AS_NUMBERS = frozenset({"`.tolist()`", "`.item()`"})
_NO_GRAD = frozenset({"torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad"})
_MOVES = frozenset({"cpu", "detach", "contiguous", "float", "double", "to", "clone"})


def _unwrapped(value: ast.expr) -> ast.expr:
    """`grad` of `grad.detach().cpu()`: moving and copying keeps the values."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _MOVES:
        value = value.func.value
    return value


def _used_names(function: AutogradFunction) -> frozenset[str]:
    """The names that the returned gradients are computed from, through assignments."""
    backward = function.backward
    assert backward is not None
    bindings = function.file.values.bindings(backward)
    pending: list[ast.AST] = [item.value for item in function.returns if item.value is not None]
    found: set[str] = set()
    while pending:
        for node in ast.walk(pending.pop()):
            if isinstance(node, ast.Name) and node.id not in found:
                found.add(node.id)
                pending.extend(binding.value for binding in bindings.all(node.id) if binding.value is not None)
    return frozenset(found)


def _reaches_result(file: FileContext, node: ast.expr, used: frozenset[str]) -> bool:
    """Whether an expression is returned, or assigned to something that is; tests and comparisons pass nothing on."""
    child: ast.AST = node
    for outer in file.ancestors(node):
        if isinstance(outer, ast.Compare) or (
            isinstance(outer, (ast.If, ast.While, ast.IfExp)) and child is outer.test
        ):
            return False
        if isinstance(outer, ast.Return):
            return True
        if isinstance(outer, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = outer.targets if isinstance(outer, ast.Assign) else [outer.target]
            return any(
                isinstance(part, ast.Name) and part.id in used for target in targets for part in ast.walk(target)
            )
        if isinstance(outer, ast.stmt):
            return False
        child = outer
    return False


def _computes_without_gradients(
    function: AutogradFunction, block: ast.With, memory: Memory, used: frozenset[str]
) -> bool:
    """Whether a `with torch.no_grad()` computes something differentiable for the result."""
    file = function.file
    opened = [item.context_expr for item in block.items]
    if not any(file.qualified_name(call.func) in _NO_GRAD for call in opened if isinstance(call, ast.Call)):
        return False
    for statement in (node for inner in block.body for node in ast.walk(inner)):
        value: ast.expr | None = None
        if isinstance(statement, ast.Return):
            value = statement.value
        elif isinstance(statement, (ast.Assign, ast.AugAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
            value = statement.value if names & used else None
        if value is not None and _is_computed(function, value, memory):
            return True
    return False


def _is_computed(function: AutogradFunction, value: ast.expr, memory: Memory) -> bool:
    """Whether a value comes out of arithmetic on an incoming gradient or a saved tensor, and has a derivative."""
    for item in value.elts if isinstance(value, ast.Tuple) else [value]:
        if function.file.values.value(item).is_discrete:
            continue
        inside = (node for node in ast.walk(item) if isinstance(node, ast.Name) and node is not item)
        if any(memory.origin(node) is not None and not _is_cut(function.file, node, item) for node in inside):
            return True
    return False


_SIZES = frozenset({"shape", "dtype", "device", "ndim", "size", "numel", "dim", "item", "long", "argmax"})


def _is_cut(file: FileContext, node: ast.AST, within: ast.AST) -> bool:
    """Whether a comparison, a size or the like stands between a name and the expression it is in."""
    for outer in file.ancestors(node):
        if isinstance(outer, ast.Compare) or (isinstance(outer, ast.Attribute) and outer.attr in _SIZES):
            return True
        if outer is within:
            return False
    return False


class IntermediateOnContext(Rule):
    """Forward computes a value from an input, keeps it on ctx, and backward uses it as if it were a constant."""

    id = "GP321"
    name = "intermediate-on-context"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("gradgradcheck", "hvp")
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    triggers = ("Function",)
    documentation = Documentation(
        what_it_does=(
            "Finds `ctx.name = value` where forward has computed the value from an input that gets a gradient, and "
            "where backward uses it, without `@once_differentiable`. Masks, signs, shapes, numbers, random noise and "
            "values that are detached on purpose are left alone. The same value given to `save_for_backward` is "
            "found as "
            "well, as a note where backward calls something that can't be differentiated anyway."
        ),
        why_is_this_bad=(
            "Forward runs without gradient recording, so the value has no history. The first derivative is right; the "
            "second treats the value as constant and is silently wrong (5 instead of 9 in our measurement). Kept on "
            "ctx, it also passes by the hooks for saved tensors, by offloading and by checkpointing."
        ),
        faulty_example=combined(
            "square = x * x\nctx.square = square\nreturn square * x", "return 3 * ctx.square * grad"
        ),
        right_example=combined(
            "ctx.save_for_backward(x)\nreturn x ** 3", "(x,) = ctx.saved_tensors\nreturn 3 * x * x * grad"
        ),
        fix_safety=(
            "Unsafe: `@once_differentiable` makes a second derivative raise. To have one, save the "
            "input and compute the "
            "value again in backward."
        ),
    )
    valid = (
        combined("ctx.save_for_backward(x)\nreturn x ** 3", "(x,) = ctx.saved_tensors\nreturn 3 * x * x * grad"),
        second_derivative_free(combined("ctx.square = x * x\nreturn ctx.square * x", "return 3 * ctx.square * grad")),
        combined("ctx.mask = x > 0\nreturn x * ctx.mask", "return grad * ctx.mask"),
        combined("ctx.sign = torch.sign(x)\nreturn x.abs()", "return grad * ctx.sign"),
        combined("ctx.noise = torch.rand_like(x)\nreturn x * ctx.noise", "return grad * ctx.noise"),
        combined("ctx.scale = x.shape[0] ** -0.5\nreturn x * ctx.scale", "return grad * ctx.scale"),
        combined("ctx.root = scale ** 0.5\nreturn x * ctx.root", "return grad * ctx.root, None", "x, scale"),
        combined("y = x * 2\nctx.shape = y.shape\nreturn y.sum()", "return 2 * grad.expand(ctx.shape)"),
        combined("y = x * 2\nctx.y = y\nreturn y.sum()", "return 2 * grad.expand(ctx.y.shape)"),
        combined("ctx.scale = x.abs().max().item()\nreturn x / ctx.scale", "return grad / ctx.scale"),
        combined("ctx.count = count_of(x)\nreturn x / ctx.count", "return grad / ctx.count"),
        combined("ctx.norm = x.norm().detach()\nreturn x / ctx.norm", "return grad / ctx.norm"),
        split(
            "return x ** 3", "(x,) = inputs\nctx.save_for_backward(x)\nctx.n = x.shape[0] * 2", "return grad * ctx.n"
        ),
        split("return x.exp()", "ctx.y = output", "return grad * ctx.y"),
        combined("y = x.view(-1)\nctx.y = y\nreturn y * 2", "return grad * ctx.y"),
        combined("ctx.k = x.long()\nctx.m = x.gt(0)\nreturn x * ctx.m", "return grad * ctx.m * ctx.k"),
        combined("s = x.exp()\nctx.save_for_backward(x, s)\nreturn x * s", "x, _ = ctx.saved_tensors\nreturn grad * x"),
        # the output is the business of GP302
        combined("y = x.exp()\nctx.y = y\nreturn y", "return grad * ctx.y"),
    )
    invalid = (
        Invalid(combined("ctx.square = x * x\nreturn ctx.square * x", "return 3 * ctx.square * grad"), (9,)),
        Invalid(
            combined(
                "ctx.z = torch.exp(s) * noise\nreturn m + ctx.z", "return grad, grad * ctx.z, None", "m, s, noise"
            ),
            (9,),
        ),
        Invalid(combined("norm = x.norm()\nctx.norm = norm\nreturn x / norm", "return grad / ctx.norm"), (10,)),
        Invalid(
            combined("s = torch.sigmoid(x)\nctx.kept = (s, 2)\nreturn x * s", "s, k = ctx.kept\nreturn grad * s * k"),
            (10,),
        ),
        Invalid(combined("ctx.kept = {'square': x * x}\nreturn x ** 3", "return 3 * grad * ctx.kept['square']"), (9,)),
        Invalid(combined("ctx.kept = dict(square=x * x)\nreturn x ** 3", "return 3 * grad * ctx.kept['square']"), (9,)),
        Invalid(split("return x ** 3", "(x,) = inputs\nctx.square = x * x", "return 3 * grad * ctx.square"), (14,)),
        # saved, but without history all the same
        Invalid(
            combined("s = x.tanh()\nctx.save_for_backward(s)\nreturn x * s", "return grad * ctx.saved_tensors[0]"),
            (10,),
        ),
        # only a note: a kernel can't be differentiated anyway
        Invalid(
            combined(
                "s = x.tanh()\nctx.save_for_backward(s)\nreturn x * s",
                "(s,) = ctx.saved_tensors\nreturn kernel(grad, s), None",
                "x, n",
            ),
            (10,),
        ),
        Invalid(
            combined(
                "s = torch.sigmoid(x)\nctx.save_for_backward(s)\nreturn x * s",
                "(s,) = ctx.saved_tensors\nreturn grad * s",
            ),
            (10,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """What forward leaves on its context, in every Function that a second derivative could go through."""
        for function in autograd_functions(file):
            if function.saver is not None and function.is_readable and not _handles_it(function):
                yield from _kept_on_context(function)
                yield from _saved(function)


def _kept_on_context(function: AutogradFunction) -> Iterator[Hit]:
    saver = function.saver
    assert saver is not None
    reader = _Intermediates(function)
    for node in own_nodes(saver):
        if not isinstance(node, ast.Assign):
            continue
        for attribute, value in assigned_attributes(node, function.context_name(saver)):
            for item in parts(value):
                names = reader.computed_from(item)
                if names and values_are_read(function, attribute):
                    yield _intermediate(function, node, f"ctx.{attribute}", names, None)
                    break


def _saved(function: AutogradFunction) -> Iterator[Hit]:
    reader = _Intermediates(function)
    severity = None if _stays_in_torch(function) else Severity.NOTE
    for save in function.saves or ():
        for position, argument in enumerate(save.call.args):
            inputs = reader.computed_from(argument)
            if inputs and _is_read(function, position):
                yield _intermediate(function, argument, f"`{function.file.source(argument)}`", inputs, severity)


def _is_read(function: AutogradFunction, position: int) -> bool:
    """Whether backward uses the saved tensor at this position, under a name or by its index."""
    assert function.backward is not None
    names = (node for node in own_nodes(function.backward) if isinstance(node, ast.Name))
    read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    for unpack in function.unpacks:
        if position < len(unpack.names) and unpack.names[position] in read:
            return True
        if not unpack.names and unpack.count == position + 1:
            return True
    return False


def _stays_in_torch(function: AutogradFunction) -> bool:
    """Whether backward is made of operations of torch alone, so that it could be differentiated but for this value."""
    assert function.backward is not None
    for node in own_nodes(function.backward):
        if not isinstance(node, ast.Call):
            continue
        qualified = function.file.qualified_name(node.func)
        name = terminal_name(node.func) or ""
        known = (qualified or "").startswith("torch.") if qualified else operations().is_tensor_method(name)
        if not known and name not in _HARMLESS:
            return False
    return True


_HARMLESS = frozenset(
    {"len", "int", "float", "range", "size", "numel", "dim", "contiguous", "tuple", "list", "sum", "to"}
)


def _intermediate(
    function: AutogradFunction, node: ast.expr | ast.stmt, what: str, names: list[str], severity: Severity | None
) -> Hit:
    inputs = ", ".join(f"`{name}`" for name in names)
    return Hit(
        node,
        f"{what} was computed from {inputs} without gradient recording: backward takes it for a constant, and a second "
        "derivative is silently wrong. Save the input and compute it again, or say `@once_differentiable`.",
        severity=severity,
        hypothesis={"function": function.name, "inputs": names, "symbol": function.file.symbol(node)},
        related=((function.backward, "it is used here"),) if function.backward is not None else (),
        fix=_once_differentiable(function),
    )


class _Intermediates:
    """Tells which values of forward are computed, with a derivative, from an input that gets a gradient."""

    def __init__(self, function: AutogradFunction) -> None:
        saver = function.saver
        assert saver is not None
        self._function = function
        self._finder = SourceFinder(function.file, saver)
        self._memory = Memory(function, saver)
        self._positions = {name: position for position, name in enumerate(function.input_names)}
        self._returned = self._names_returned()
        # `setup_context` gets all inputs at once, so that it can't be told which of them a value comes from.
        several = [argument.arg for argument in saver.args.args] if function.setup_context is not None else []
        self._inputs_name = several[1] if len(several) == 3 else None

    def computed_from(self, value: ast.expr) -> list[str]:
        """The inputs; empty for an input itself, an output, what is discrete or a number, what is detached."""
        file = self._function.file
        definition = file.values.single_definition(value) if isinstance(value, ast.Name) else value
        if definition is None or not isinstance(definition, (ast.BinOp, ast.Call, ast.UnaryOp)):
            return []
        if isinstance(value, ast.Name) and value.id in self._returned:
            return []
        if self._memory.origin(value) is not None:
            return []
        known = file.values.value(definition)
        if known.is_discrete or known.kind is Kind.NUMBER:
            return []
        certain = self._finder.sources(definition).certain
        if self._inputs_name is not None:
            any_gradient = any(self._function.receives_gradient(position) for position in self._positions.values())
            return ["inputs"] if self._inputs_name in certain and any_gradient else []
        return [
            name
            for name, position in self._positions.items()
            if name in certain and self._function.receives_gradient(position)
        ]

    def _names_returned(self) -> frozenset[str]:
        found: set[str] = set()
        assert self._function.forward is not None
        for statement in self._function.file.returns_of(self._function.forward):
            items = statement.value.elts if isinstance(statement.value, ast.Tuple) else [statement.value]
            found |= {item.id for item in items if isinstance(item, ast.Name)}
        return frozenset(found)
