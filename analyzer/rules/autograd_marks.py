"""What forward has to tell autograd about its outputs: changed inputs that are not returned (GP308), outputs without a
gradient (GP309), gradients that may be missing (GP310)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from analyzer.autograd_functions import AutogradFunction, autograd_functions
from analyzer.context import FileContext
from analyzer.facts import operations
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.function_edits import line_before
from analyzer.function_memory import Memory
from analyzer.function_sources import SourceFinder
from analyzer.gradient_returns import own_nodes
from analyzer.rules.autograd_examples import combined, split
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import FunctionNode, terminal_name
from analyzer.values.domain import Kind

# Outputs that are indices, counts or handles, whatever call they come from.
_NO_NUMBERS = re.compile(r"idx|ind(ex|ices)|count|num|handle|mask|token|seed|rng|state|meta", re.IGNORECASE)


def _marking_calls(function: AutogradFunction, name: str) -> Iterator[tuple[FunctionNode, ast.Call]]:
    """The calls of `ctx.<name>` in forward and in setup_context."""
    for method in (function.forward, function.setup_context):
        if method is None:
            continue
        context = function.context_name(method)
        for node in own_nodes(method):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=attribute)):
                    if owner == context and attribute == name:
                        yield method, node


class DirtyInputNotReturned(Rule):
    """Forward marks an input as changed and does not return it."""

    id = "GP308"
    name = "dirty-input-not-returned"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    triggers = ("mark_dirty",)
    documentation = Documentation(
        what_it_does=(
            "Finds `ctx.mark_dirty(x)` in a forward that gives back a new tensor and not `x`. A result that may be "
            "`x`, "
            "because a function that is not known made it, is left alone."
        ),
        why_is_this_bad=(
            "Torch raises `Some elements marked as dirty during the forward method were not returned as output` on "
            "every "
            "call. Autograd can only put the Function into the history of `x` if `x` is an output."
        ),
        faulty_example=combined("ctx.mark_dirty(x)\nx.mul_(2)\nreturn x * 3", "return grad * 6"),
        right_example=combined("ctx.mark_dirty(x)\nx.mul_(2)\nreturn x", "return grad * 2"),
        fix_safety="No automatic fix: the input has to be returned as well, and backward gets one more gradient.",
    )
    valid = (
        combined("ctx.mark_dirty(x)\nx.mul_(2)\nreturn x", "return grad * 2"),
        combined("ctx.mark_dirty(x)\nreturn x.mul_(2)", "return grad * 2"),
        combined("ctx.mark_dirty(x)\ny = x.mul_(2)\nreturn y, x * 2", "return a * 2 + b", gradients="a, b"),
        combined("ctx.mark_dirty(x)\nreturn kernel(x)", "return grad * 2"),
        combined("ctx.mark_dirty(x)\nx.mul_(2)\nreturn x.contiguous()", "return grad * 2"),
        combined("ctx.mark_dirty(x)\nfor y in [x]:\n    y.mul_(2)\nreturn y", "return grad * 2"),
        combined("y = x * 2\nctx.mark_dirty(y)\nreturn y * 2", "return grad * 2"),
        combined("other.mark_dirty(x)\nreturn x * 2", "return grad * 2"),
        combined("if ctx.flag:\n    ctx.mark_dirty(x)\nreturn x * 2", "return grad * 2"),
        # a forward that always raises returns nothing that could be marked
        combined("ctx.mark_dirty(x)\nraise NotImplementedError", "return grad * 2"),
        combined("ctx.mark_dirty(x)\nreturn F.relu(x, inplace=True)", "return grad * 2"),
        combined(
            "if ctx.inplace:\n    ctx.mark_dirty(x)\n    x.mul_(2)\n    return x\nreturn x * 2", "return grad * 2"
        ),
        combined("ctx.mark_dirty(*tensors)\nreturn tensors", "return grads", "*tensors", "*grads"),
        combined("ctx.mark_dirty(x)\nx.mul_(2)\nresults = [x]\nreturn tuple(results)", "return grad * 2"),
    )
    invalid = (
        Invalid(combined("ctx.mark_dirty(x)\nx.mul_(2)\nreturn x * 3", "return grad * 6"), (9,)),
        Invalid(combined("ctx.mark_dirty(x, w)\nx.mul_(w)\nreturn x", "return grad, grad", "x, w"), (9,)),
        Invalid(combined("x.mul_(2)\nctx.mark_dirty(x)\ny = x + 1\nz = y.exp()\nreturn z", "return grad"), (10,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every input that is marked in a forward that takes the context."""
        for function in autograd_functions(file):
            forward = function.forward
            if forward is None or function.setup_context is not None:
                continue
            returns = file.returns_of(forward)
            for method, call in _marking_calls(function, "mark_dirty"):
                for argument in call.args:
                    if not isinstance(argument, ast.Name) or argument.id not in function.input_names:
                        continue
                    block = file.parent(file.statement(call) or call)
                    if block is method and returns and not any(_may_hold(file, item, argument.id) for item in returns):
                        yield Hit(
                            call,
                            f"`{argument.id}` is marked as dirty and not returned: torch raises on every call. "
                            f"Return it.",
                            hypothesis={"function": function.name, "input": argument.id, "symbol": file.symbol(call)},
                            related=tuple((item, "this is returned instead") for item in returns[:1]),
                        )


def _may_hold(file: FileContext, node: ast.AST | None, name: str, depth: int = 0) -> bool:
    """Whether an expression may be, or hold, the tensor of this name; what torch certainly makes anew is not."""
    if depth > 6:
        return True
    inner: list[ast.expr | None]
    match node:
        case None | ast.Constant() | ast.BinOp() | ast.Compare() | ast.UnaryOp():
            inner = []
        case ast.Name(id=found):
            values = [binding.value for binding in file.values.definitions(node)]
            if found == name or None in values:
                return True
            inner = list(values)
        case ast.Call():
            inner = list(_passed_through(file, node))
        case _:
            inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    return any(_may_hold(file, item, name, depth + 1) for item in inner)


def _passed_through(file: FileContext, call: ast.Call) -> list[ast.expr]:
    """The operands of a call that its result may be or hold: of an operation of torch, the first at most."""
    owner = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    qualified = file.qualified_name(call.func)
    full = qualified or f"torch.Tensor.{terminal_name(call.func)}"
    operands = call.args if qualified is not None else [*owner, *call.args]
    in_place = any(keyword.arg in ("inplace", "out") for keyword in call.keywords)
    if _makes_anew(full) and not in_place:
        return []
    known = operations()
    if known.writes(full) or known.views(full):
        return operands[:1]
    return operands


def _makes_anew(full: str) -> bool:
    known = operations()
    name = full.rpartition(".")[2]
    return (
        known.returns_one_tensor(full)
        and not known.views(full)
        and not known.writes(full)
        and name not in {"reshape", "contiguous", "flatten", "detach", "view_as", "expand_as", "narrow"}
    )


class UnmarkedOutput(Rule):
    """Forward has a second output whose gradient backward throws away."""

    id = "GP309"
    name = "unmarked-auxiliary-output"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    fix = FixSafety.SAFE
    triggers = ("Function",)
    documentation = Documentation(
        what_it_does=(
            "Finds a floating-point output of forward whose incoming gradient backward never uses and that is not "
            "given "
            "to `ctx.mark_non_differentiable`. Integer and boolean outputs are not differentiable by themselves. Where "
            "the output has no derivative anyway (a mask), or comes from a call that is not known, it is a note."
        ),
        why_is_this_bad=(
            "The output says `requires_grad=True`, and whoever puts it into a loss gets a gradient of zero for it, "
            "without a word. Marked, using it in a loss raises, or autograd knows to leave it out."
        ),
        faulty_example=combined(
            "norm = x.norm()\nctx.save_for_backward(x)\nreturn x * 2, norm",
            "return grad * 2",
            gradients="grad, grad_norm",
        ),
        right_example=combined(
            "norm = x.norm()\nctx.mark_non_differentiable(norm)\nreturn x * 2, norm",
            "return grad * 2",
            gradients="grad, grad_norm",
        ),
        fix_safety="Safe: no value changes; the output then says that it has no gradient.",
    )
    valid = (
        combined("norm = x.norm()\nreturn x * 2, norm", "return grad * 2 + other", gradients="grad, other"),
        combined("i = x.argmax()\nreturn x * 2, i", "return grad * 2", gradients="grad, other"),
        combined("m = x > 0\nreturn x * 2, m", "return grad * 2", gradients="grad, other"),
        combined("n = x.shape[0]\nreturn x * 2, n", "return grad * 2", gradients="grad, other"),
        combined("n = x.norm().item()\nreturn x * 2, n", "return grad * 2", gradients="grad, other"),
        combined("return x * 2, None", "return grad * 2", gradients="grad, other"),
        combined("norm = x.norm()\nreturn x * 2, norm", "return combine(*grads)", gradients="*grads"),
        combined(
            "norm = x.norm()\nctx.mark_non_differentiable(*[norm])\nreturn x * 2, norm",
            "return grad",
            gradients="grad, other",
        ),
        # a backward that always raises says itself that it has no gradient
        combined("norm = x.norm()\nreturn x * 2, norm", "raise NotImplementedError", gradients="grad, other"),
        split(
            "return x * 2, x.norm()",
            "y, norm = output\nctx.mark_non_differentiable(norm)",
            "return grad * 2",
            gradients="grad, other",
        ),
        combined("return x * 2, w", "return grad, None", "x, w", "grad, other"),
        combined(
            "y = x * 2\nif ctx.flag:\n    return y\nreturn y, x.norm()", "return grad", gradients="grad, other=None"
        ),
        combined("rest = [x.norm()]\nreturn x * 2, *rest", "return grad", gradients="grad, other"),
        combined("return x * 2, x.norm()", "return g[0] * g[1]", gradients="*g"),
        combined("return x * 2, x.norm()", "return g.sum()", gradients="*g"),
        combined("y, idx = kernel.forward(x)\nreturn y, idx", "return grad", gradients="grad, other"),
        combined("state = [x, x]\nreturn x * 2, state", "return grad * 2", gradients="grad, other"),
    )
    invalid = (
        Invalid(combined("norm = x.norm()\nreturn x * 2, norm", "return grad * 2", gradients="grad, other"), (10,)),
        Invalid(combined("return x * 2, x.exp()", "return grad * 2", gradients="grad, _"), (9,)),
        Invalid(combined("a = x * 2\nb = a + 1\nreturn a, b", "return g[0] * 2", gradients="*g"), (11,)),
        # only notes: there is no derivative to lose, or nobody knows
        Invalid(combined("on = (x > 0).float()\nreturn x * on, on", "return grad", gradients="grad, other"), (10,)),
        Invalid(
            combined("y, lse = kernel.forward(x)\nreturn y, lse", "return grad * lse", gradients="grad, other"), (10,)
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """The outputs after the first, in every Function that returns a tuple."""
        for function in autograd_functions(file):
            forward, backward = function.forward, function.backward
            if forward is None or backward is None or not function.is_readable or function.only_raises:
                continue
            if any(True for _ in _marking_calls(function, "mark_non_differentiable")):
                continue
            returns = [item for item in file.returns_of(forward) if isinstance(item.value, ast.Tuple)]
            if len(returns) != len(file.returns_of(forward)) or not returns:
                continue
            for position in range(1, min(len(_items(item)) for item in returns)):
                if _gradient_is_used(function, position):
                    continue
                hit = _unmarked(function, forward, returns[-1], position)
                if hit is not None:
                    yield hit


def _items(statement: ast.Return) -> list[ast.expr]:
    return statement.value.elts if isinstance(statement.value, ast.Tuple) else []


def _gradient_is_used(function: AutogradFunction, position: int) -> bool:
    """Whether backward reads the gradient of this output, or can't be seen not to."""
    backward = function.backward
    assert backward is not None
    names = [argument.arg for argument in function.gradient_parameters]
    if position < len(names):
        return any(isinstance(node, ast.Name) and node.id == names[position] for node in own_nodes(backward))
    several = backward.args.vararg
    if several is None:
        return True
    index = position - len(names)
    for node in own_nodes(backward):
        if isinstance(node, ast.Name) and node.id == several.arg:
            parent = function.file.parent(node)
            fixed = isinstance(parent, ast.Subscript) and isinstance(parent.slice, ast.Constant)
            if not fixed or parent.slice.value == index:  # type: ignore[union-attr]
                return True
    return False


def _unmarked(function: AutogradFunction, forward: FunctionNode, statement: ast.Return, position: int) -> Hit | None:
    file = function.file
    item = _items(statement)[position]
    value = file.values.value(item)
    if value.is_discrete or value.kind in (Kind.NUMBER, Kind.OTHER, Kind.ARRAY) or isinstance(item, ast.Starred):
        return None
    memory = Memory(function, forward)
    if memory.origin(item) is not None:
        return None  # an input that is handed on
    sources = SourceFinder(file, forward).sources(item)
    definition = file.values.single_definition(item) if isinstance(item, ast.Name) else item
    if not sources.certain:
        known_tensor = value.kind is Kind.TENSOR or _from_unpacked_call(file, item)
        if (
            not known_tensor
            or _NO_NUMBERS.search(file.source(item))
            or isinstance(definition, (ast.List, ast.Tuple, ast.ListComp))
        ):
            return None
    elif isinstance(definition, (ast.List, ast.Tuple, ast.ListComp, ast.Dict)):
        return None
    shown = file.source(item)
    edit = _marked(file, function, statement, item)
    return Hit(
        item,
        f"the output `{shown}` is differentiable for autograd, but backward never uses its gradient: in a loss it "
        f"silently "
        f"has none. Call `ctx.mark_non_differentiable({shown})`, or use the gradient.",
        severity=None if _has_derivative(function, sources.certain) else Severity.NOTE,
        hypothesis={"function": function.name, "output": position, "symbol": file.symbol(item)},
        related=((function.backward, "its gradient comes in here and is not used"),) if function.backward else (),
        fix=Rewrite(FixSafety.SAFE, (edit,)) if edit is not None else None,
    )


def _has_derivative(function: AutogradFunction, names: frozenset[str]) -> bool:
    """Whether one of these inputs is one that backward has a gradient for, as far as can be seen."""
    inputs = function.input_names
    return any(name in inputs and function.receives_gradient(inputs.index(name)) is not False for name in names)


def _from_unpacked_call(file: FileContext, item: ast.expr) -> bool:
    """`y, lse = kernel.forward(x)`: one of several results of a call."""
    bindings = file.values.definitions(item) if isinstance(item, ast.Name) else []
    return bool(bindings) and all(
        binding.element is not None and isinstance(binding.value, ast.Call) for binding in bindings
    )


def _marked(file: FileContext, function: AutogradFunction, statement: ast.Return, item: ast.expr) -> Replacement | None:
    if not isinstance(item, ast.Name) or function.setup_context is not None or function.forward is None:
        return None
    context = function.context_name(function.forward)
    if context is None or len(file.returns_of(function.forward)) != 1:
        return None
    return line_before(file, statement, f"{context}.mark_non_differentiable({item.id})")


class UnguardedMissingGradient(Rule):
    """Missing gradients come in as None, and backward calculates with them."""

    id = "GP310"
    name = "unguarded-missing-gradient"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    triggers = ("set_materialize_grads",)
    documentation = Documentation(
        what_it_does=(
            "Finds a Function with several outputs that calls `ctx.set_materialize_grads(False)` and whose backward "
            "calculates with an incoming gradient that it never compares with None."
        ),
        why_is_this_bad=(
            "An output that is not part of the loss then has None for a gradient, and backward raises "
            "`unsupported operand type(s) for *: 'NoneType' and 'int'`: only for those who leave one output out."
        ),
        faulty_example=combined(
            "ctx.set_materialize_grads(False)\nreturn x * 2, x * 3", "return a * 2 + b * 3", gradients="a, b"
        ),
        right_example=combined(
            "ctx.set_materialize_grads(False)\nreturn x * 2, x * 3",
            "result = 0\nif a is not None:\n    result = result + a * 2\nif b is not None:\n"
            "    result = result + b * 3\n"
            "return result",
            gradients="a, b",
        ),
        fix_safety="No automatic fix: what a missing gradient means for the result only the formula tells.",
    )
    valid = (
        combined("ctx.set_materialize_grads(True)\nreturn x * 2, x * 3", "return a * 2 + b * 3", gradients="a, b"),
        combined("ctx.set_materialize_grads(False)\nreturn x * 2", "return grad * 2"),
        combined(
            "ctx.set_materialize_grads(False)\nreturn x * 2, x * 3",
            "if a is None or b is None:\n    return None\nreturn a * 2 + b * 3",
            gradients="a, b",
        ),
        combined(
            "ctx.set_materialize_grads(False)\nreturn x * 2, x * 3",
            "a = torch.zeros(3) if a is None else a\nif b is None:\n    return a * 2\nreturn a * 2 + b * 3",
            gradients="a, b",
        ),
        combined("ctx.set_materialize_grads(KEEP)\nreturn x * 2, x * 3", "return a * 2 + b * 3", gradients="a, b"),
        combined("ctx.set_materialize_grads(False)\nreturn x, x * 3", "return a * 2 if a else b", gradients="a, b"),
        combined("ctx.set_materialize_grads(False)\nreturn x, x * 3", "return kept[a], {1: b}", gradients="a, b"),
        combined("ctx.set_materialize_grads(False)\nreturn x, x.argmax()", "return combine(a, b)", gradients="a, b"),
    )
    invalid = (
        Invalid(
            combined("ctx.set_materialize_grads(False)\nreturn x * 2, x * 3", "return a * 2 + b * 3", gradients="a, b"),
            (14, 14),
        ),
        Invalid(
            combined(
                "ctx.set_materialize_grads(False)\nreturn x * 2, x * 3",
                "if a is not None:\n    return a.sum()\nreturn b.sum() * 2",
                gradients="a, b",
            ),
            (16,),
        ),
        Invalid(
            split("return x * 2, x * 3", "ctx.set_materialize_grads(False)", "return -a", gradients="a, b"),
            (17,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """The first unguarded use of each incoming gradient."""
        for function in autograd_functions(file):
            if function.backward is None or not _has_several_outputs(function):
                continue
            for _, call in _marking_calls(function, "set_materialize_grads"):
                if not (call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value is False):
                    continue
                for argument in function.gradient_parameters:
                    use = _unguarded_use(function, argument.arg)
                    if use is not None:
                        yield Hit(
                            use,
                            f"`{argument.arg}` is None when its output is not part of the loss, because of "
                            "`set_materialize_grads(False)`: this raises then. Compare it with None first.",
                            hypothesis={
                                "function": function.name,
                                "gradient": argument.arg,
                                "symbol": file.symbol(use),
                            },
                            related=((call, "missing gradients are None from here on"),),
                        )


def _has_several_outputs(function: AutogradFunction) -> bool:
    returns = [] if function.forward is None else function.file.returns_of(function.forward)
    return any(isinstance(item.value, ast.Tuple) and len(item.value.elts) > 1 for item in returns)


def _unguarded_use(function: AutogradFunction, name: str) -> ast.expr | None:
    """The first calculation with a gradient that backward never tests; passing it on is no calculation."""
    assert function.backward is not None
    uses = [node for node in own_nodes(function.backward) if isinstance(node, ast.Name) and node.id == name]
    if any(_is_tested(function.file, node) for node in uses):
        return None
    found = [node for node in uses if isinstance(node.ctx, ast.Load) and _calculates(function.file, node)]
    return min(found, key=lambda node: (node.lineno, node.col_offset), default=None)


def _is_tested(file: FileContext, node: ast.expr) -> bool:
    parent = file.parent(node)
    if isinstance(parent, (ast.Compare, ast.BoolOp)):
        return True
    if isinstance(parent, (ast.If, ast.IfExp, ast.While)):
        return parent.test is node
    return isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not)


def _calculates(file: FileContext, node: ast.expr) -> bool:
    parent = file.parent(node)
    if isinstance(parent, ast.Attribute):
        return True
    return isinstance(parent, (ast.BinOp, ast.UnaryOp)) or (isinstance(parent, ast.Subscript) and parent.value is node)
