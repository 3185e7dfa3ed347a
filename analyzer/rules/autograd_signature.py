"""Signatures of a custom Function that do not fit together: backward and the outputs of forward (GP327), the "
"context and
what is read from it (GP329, GP331), outputs that autograd does not see (GP330)."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from analyzer.autograd_functions import AutogradFunction, autograd_functions
from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.function_edits import line_before
from analyzer.gradient_returns import own_nodes
from analyzer.rules.autograd_examples import combined, split
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import FunctionNode, is_docstring


class BackwardParameters(Rule):
    """Backward takes another number of gradients than forward has outputs."""

    id = "GP327"
    name = "backward-parameter-count"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    triggers = ("Function",)
    documentation = Documentation(
        what_it_does=(
            "Compares the outputs of forward, where every `return` says how many there are, with the gradients that "
            "backward takes. Every output counts, also one that is no tensor. `*grads` and defaults are taken into "
            "account."
        ),
        why_is_this_bad=(
            "Autograd calls backward with one argument for each output and raises `TypeError: takes 2 positional "
            "arguments "
            "but 3 were given`, and only in the backward pass."
        ),
        faulty_example=combined("return x * 2, x * 3", "return grad * 2"),
        right_example=combined("return x * 2, x * 3", "return grad * 2 + other * 3", gradients="grad, other"),
        fix_safety="No automatic fix: what the further gradient contributes has to be written.",
    )
    valid = (
        combined("return x * 2, x * 3", "return grads[0] * 2", gradients="*grads"),
        combined("return x * 2, x * 3", "return a * 2 + b * 3", gradients="a, b"),
        combined("return x * 2", "return grad * 2", gradients="grad, other=None"),
        combined("return helper(x)", "return a * 2 + b", gradients="a, b"),
        combined("if x.ndim > 1:\n    return x * 2, x\nreturn x * 2", "return grad", gradients="grad, other"),
        combined("return (x * 2, *rest)", "return grad", "x, *rest"),
        combined("y = x * 2, x\nreturn y", "return a + b", gradients="a, b"),
        # a backward that always raises says itself that it has no gradient
        combined("return x * 2, x * 3", "raise NotImplementedError"),
    )
    invalid = (
        Invalid(combined("return x * 2, x * 3", "return grad * 2"), (12,)),
        Invalid(combined("return x * 2", "return a * 2 + b", gradients="a, b"), (12,)),
        Invalid(combined("return x * 2, None", "return grad * 2"), (12,)),
        Invalid(split("return x * 2, x.argmax()", "pass", "return grad * 2"), (16,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every Function whose outputs can be counted."""
        for function in autograd_functions(file):
            forward, backward = function.forward, function.backward
            if forward is None or backward is None or not function.is_readable or function.only_raises:
                continue
            if function.is_wrapped or backward.args.kwonlyargs:
                continue
            counts = {_outputs(item.value) for item in file.returns_of(forward)}
            outputs = counts.pop() if len(counts) == 1 else None
            taken = len(function.gradient_parameters)
            least = taken - len(backward.args.defaults)
            if outputs is None or (least <= outputs and (outputs <= taken or backward.args.vararg is not None)):
                continue
            yield Hit(
                backward,
                f"backward takes {taken} gradient{'s' if taken != 1 else ''}, and forward has {outputs} "
                f"output{'s' if outputs != 1 else ''}: autograd passes one for each and raises TypeError.",
                hypothesis={
                    "function": function.name,
                    "outputs": outputs,
                    "taken": taken,
                    "symbol": file.symbol(backward),
                },
                related=tuple((item, "the outputs are counted here") for item in file.returns_of(forward)[:1]),
            )


def _outputs(value: ast.expr | None) -> int | None:
    """How many outputs a return has; None where that can't be seen."""
    match value:
        case ast.Tuple(elts=items):
            return None if any(isinstance(item, ast.Starred) for item in items) else len(items)
        case ast.BinOp(op=ast.Add() | ast.Mult(), left=left, right=right):
            # Tuples can be added and repeated as well.
            return 1 if any(isinstance(side, (ast.Constant, ast.UnaryOp)) for side in (left, right)) else None
        case ast.BinOp() | ast.Compare() | ast.UnaryOp():
            return 1
    return None


class NeedsInputGradIndex(Rule):
    """Backward asks `ctx.needs_input_grad` for an input that forward does not have."""

    id = "GP329"
    name = "needs-input-grad-index"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    triggers = ("needs_input_grad",)
    documentation = Documentation(
        what_it_does=(
            "Finds `ctx.needs_input_grad[i]` with an `i` that is not smaller than the number of inputs of forward, "
            "and an "
            "unpacking of it into another number of names."
        ),
        why_is_this_bad=(
            "The context is not counted: the first input has index 0. Python raises `IndexError: tuple index out of "
            "range` in the backward pass; and whoever counted the context in asks the wrong input at all smaller "
            "indices."
        ),
        faulty_example=combined(
            "return x * w",
            "gx = grad if ctx.needs_input_grad[1] else None\ngw = grad if ctx.needs_input_grad[2] else None\n"
            "return gx, gw",
            "x, w",
        ),
        right_example=combined(
            "return x * w",
            "gx = grad if ctx.needs_input_grad[0] else None\ngw = grad if ctx.needs_input_grad[1] else None\n"
            "return gx, gw",
            "x, w",
        ),
        fix_safety="No automatic fix: which input was meant only its author knows.",
    )
    valid = (
        combined("return x * w", "return grad if ctx.needs_input_grad[1] else None, grad", "x, w"),
        combined("return x * w", "return grad if ctx.needs_input_grad[-1] else None, grad", "x, w"),
        combined("return x", "return grad if ctx.needs_input_grad[3] else None", "x, *rest"),
        combined("return x * w", "a, b = ctx.needs_input_grad\nreturn grad if a else None, grad", "x, w"),
        combined("return x * w", "a, *_ = ctx.needs_input_grad\nreturn grad if a else None, grad", "x, w"),
        combined("return x * w", "a = ctx.needs_input_grad[:2]\nreturn grad if a[0] else None, grad", "x, w"),
    )
    invalid = (
        Invalid(combined("return x * w", "return grad if ctx.needs_input_grad[2] else None, grad", "x, w"), (13,)),
        Invalid(
            combined("return x * w", "a, b, c = ctx.needs_input_grad\nreturn grad if a else None, grad", "x, w"), (13,)
        ),
        Invalid(split("return x * w", "pass", "return grad if ctx.needs_input_grad[2] else None, grad", "x, w"), (17,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every constant index and every unpacking."""
        for function in autograd_functions(file):
            if function.forward is None or not function.is_readable or function.is_variadic:
                continue
            count = len(function.inputs)
            for attribute in file.nodes_in(function.node, ast.Attribute):
                asked = _asked(file, attribute) if attribute.attr == "needs_input_grad" else None
                if asked is None or (asked[1] <= count and not asked[2]) or asked[1] == count:
                    continue
                yield Hit(
                    asked[0],
                    f"forward has {count} input{'s' if count != 1 else ''}, without the context, so that this raises "
                    f"in the "
                    "backward pass: the first input has index 0.",
                    hypothesis={"function": function.name, "inputs": count, "symbol": file.symbol(attribute)},
                    related=((function.forward, "the inputs are counted here"),),
                )


def _asked(file: FileContext, attribute: ast.Attribute) -> tuple[ast.expr | ast.stmt, int, bool] | None:
    """(the place, how many inputs it takes for granted, whether exactly as many)."""
    parent = file.parent(attribute)
    match parent:
        case ast.Subscript(slice=ast.Constant(value=int(number))):
            return parent, number + 1, False
        case ast.Assign(targets=[ast.Tuple(elts=items)], value=value) if value is attribute:
            starred = any(isinstance(item, ast.Starred) for item in items)
            return None if starred else (parent, len(items), True)
    return None


class UntrackedOutput(Rule):
    """Forward returns a list or a dictionary, inside which autograd does not look."""

    id = "GP330"
    name = "untracked-function-output"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradient_flow",)
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    triggers = ("Function",)
    documentation = Documentation(
        what_it_does=(
            "Finds a forward of a custom `torch.autograd.Function` that returns a list, a dictionary, or a tuple "
            "with one of "
            "these inside, whose tensors are computed."
        ),
        why_is_this_bad=(
            "Autograd only tracks tensors that are returned alone or in a plain tuple. What lies in a list has no "
            "`grad_fn` and `requires_grad=False`: the gradient is cut there, without an error."
        ),
        faulty_example=combined("return [x * 2, x * 3]", "return a * 2 + b * 3", gradients="a, b"),
        right_example=combined("return x * 2, x * 3", "return a * 2 + b * 3", gradients="a, b"),
        fix_safety="Unsafe: returns a tuple, which has no `append`.",
    )
    valid = (
        combined("return x * 2, x * 3", "return a * 2 + b * 3", gradients="a, b"),
        combined("parts = [x * 2, x * 3]\nreturn tuple(parts)", "return a * 2 + b * 3", gradients="a, b"),
        combined("return x * 2, [1, 2]", "return grad", gradients="grad, other"),
        combined("return x * 2, {}", "return grad", gradients="grad, other"),
        combined("parts = [x * 2]\nreturn torch.stack(parts)", "return grad"),
        combined("return x * 2, [x.shape, 3]", "return grad", gradients="grad, other"),
    )
    invalid = (
        Invalid(combined("return [x * 2, x * 3]", "return a * 2 + b * 3", gradients="a, b"), (9,)),
        Invalid(combined("parts = [x * 2, x * 3]\nreturn parts", "return a * 2 + b * 3", gradients="a, b"), (10,)),
        Invalid(combined("return {'y': x * 2}", "return grad"), (9,)),
        Invalid(combined("return [t * 2 for t in (x, x)]", "return grad"), (9,)),
        Invalid(combined("return x * 2, [x * 3]", "return grad", gradients="grad, other"), (9,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every return of every forward."""
        for function in autograd_functions(file):
            forward = function.forward
            if forward is None or not function.is_readable or function.only_raises:
                continue
            for statement in file.returns_of(forward):
                value = statement.value
                for item in value.elts if isinstance(value, ast.Tuple) else [value]:
                    kind = _holds_tensors(file, item) if item is not None else None
                    if item is None or kind is None:
                        continue
                    whole = isinstance(item, (ast.List, ast.ListComp)) and item is value
                    edit = Replacement(item, f"tuple({file.source(item)})") if whole and _has_several(item) else None
                    yield Hit(
                        item,
                        f"autograd does not look into a {kind}: these tensors come out without a gradient, and "
                        f"nothing says "
                        "so. Return them in a plain tuple.",
                        hypothesis={"function": function.name, "symbol": file.symbol(statement)},
                        related=((forward, "forward"),),
                        fix=Rewrite(FixSafety.UNSAFE, (edit,)) if edit is not None else None,
                    )


def _has_several(item: ast.expr) -> bool:
    return isinstance(item, ast.ListComp) or (isinstance(item, ast.List) and bool(item.elts))


def _holds_tensors(file: FileContext, item: ast.expr) -> str | None:
    """ "list" or "dictionary" for one that is written out here or assigned once, with something computed inside."""
    opened = item
    if isinstance(item, ast.Name):
        definition = file.values.single_definition(item)
        if definition is None:
            return None
        opened = definition
    match opened:
        case ast.List(elts=items):
            inside, kind = items, "list"
        case ast.ListComp(elt=element):
            inside, kind = [element], "list"
        case ast.Dict(values=items):
            inside, kind = items, "dictionary"
        case _:
            return None
    return kind if any(_is_computed(item) for item in inside) else None


def _is_computed(item: ast.expr) -> bool:
    """Arithmetic or a method on something: hardly anything but a tensor, in a forward."""
    return isinstance(item, ast.BinOp) and not isinstance(item.op, (ast.Mod, ast.FloorDiv))


_CONTEXT_ATTRIBUTES = frozenset(
    {
        *(
            "apply",
            "dirty_tensors",
            "mark_dirty",
            "mark_non_differentiable",
            "mark_shared_storage",
            "materialize_grads",
        ),
        *("maybe_clear_saved_tensors", "metadata", "name", "needs_input_grad", "next_functions", "non_differentiable"),
        *("register_hook", "register_prehook", "requires_grad", "save_for_backward", "save_for_forward", "to_save"),
        *("saved_for_forward", "saved_tensors", "saved_variables", "set_materialize_grads", "apply_boxed", "apply_jvp"),
    }
)


class ContextAttributeNeverSet(Rule):
    """Backward reads an attribute of the context that nothing sets."""

    id = "GP331"
    name = "context-attribute-never-set"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    triggers = ("Function",)
    documentation = Documentation(
        what_it_does=(
            "Finds `ctx.name` in backward where no method of the Function ever sets `ctx.name`, and where the "
            "context is "
            "not handed to anybody else who could. An attribute that is only set under a condition is left alone."
        ),
        why_is_this_bad=(
            "Python raises `AttributeError: 'OpBackward' object has no attribute …`, and only in the backward pass. A "
            "misspelled `saved_tensors` is found the same way."
        ),
        faulty_example=combined("ctx.factor = k\nreturn x * k", "return grad * ctx.scale, None", "x, k"),
        right_example=combined("ctx.scale = k\nreturn x * k", "return grad * ctx.scale, None", "x, k"),
        fix_safety="Unsafe, because it goes by the name: keeps the input of forward that is called like the attribute.",
    )
    valid = (
        combined("ctx.scale = k\nreturn x * k", "return grad * ctx.scale, None", "x, k"),
        combined("ctx.scale, ctx.n = k, 2\nreturn x * k", "return grad * ctx.scale * ctx.n, None", "x, k"),
        combined("fill(ctx, k)\nreturn x * k", "return grad * ctx.scale, None", "x, k"),
        combined("setattr(ctx, 'scale', k)\nreturn x * k", "return grad * ctx.scale, None", "x, k"),
        combined("return x * 2", "ctx.scale = 2\nreturn grad * ctx.scale"),
        combined("return x * 2", "return grad * getattr(ctx, 'scale', 2)"),
        combined("return x * 2", "if hasattr(ctx, 'scale'):\n    return grad * ctx.scale\nreturn grad"),
        combined("return x * 2", "try:\n    return grad * ctx.scale\nexcept AttributeError:\n    return grad"),
        combined("if k > 1:\n    ctx.scale = k\nreturn x * k", "return grad * ctx.scale, None", "x, k"),
        combined("ctx.__dict__.update(scale=k)\nreturn x * k", "return grad * ctx.scale, None", "x, k"),
        combined("return x * 2", "return grad * ctx._private"),
        split("return x * k", "ctx.scale = inputs[1]", "return grad * ctx.scale, None", "x, k"),
        combined("return x * 2", "scale, = ctx.saved_tensors\nctx.maybe_clear_saved_tensors()\nreturn grad * scale"),
        # set on the class: the context is an instance of a class that derives from it
        combined("return x * 2", "return grad * ctx.scale").replace("(Function):\n", "(Function):\n    scale = 2\n\n"),
    )
    invalid = (
        Invalid(combined("ctx.factor = k\nreturn x * k", "return grad * ctx.scale, None", "x, k"), (14,)),
        Invalid(combined("ctx.save_for_backward(x)\nreturn x * x", "x, = ctx.saved_tensor\nreturn grad * x"), (14,)),
        Invalid(combined("scale = 2\nreturn x * scale", "g = grad * ctx.scale\nreturn g / ctx.scale"), (14,)),
        Invalid(split("return x * k", "ctx.factor = inputs[1]", "return grad * ctx.scale, None", "x, k"), (17,)),
        Invalid(combined('"""Scales."""\nreturn x * k', "return grad * ctx.k, None", "x, k"), (14,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """The first read of each attribute that nobody sets."""
        for function in autograd_functions(file):
            backward = function.backward
            if backward is None or not function.is_readable or function.saves is None:
                continue
            context = function.context_name(backward)
            if context is None or _may_be_set_elsewhere(function):
                continue
            known = _CONTEXT_ATTRIBUTES | _set_by(function)
            seen: set[str] = set()
            for node in file.nodes_in(backward, ast.Attribute):
                is_context = isinstance(node.value, ast.Name) and node.value.id == context
                if not is_context or node.attr in known or node.attr in seen or node.attr.startswith("_"):
                    continue
                seen.add(node.attr)
                yield Hit(
                    node,
                    f"no method of `{function.name}` sets `{context}.{node.attr}`: this raises AttributeError in the "
                    f"backward "
                    "pass.",
                    hypothesis={"function": function.name, "attribute": node.attr, "symbol": file.symbol(node)},
                    related=tuple((method, "it would have to be set here") for method in _savers(function)),
                    fix=_kept(function, node.attr),
                )


def _kept(function: AutogradFunction, attribute: str) -> Rewrite | None:
    """`ctx.scale = scale` at the start of a forward that has an input of this name."""
    forward = function.forward
    if forward is None or function.setup_context is not None or attribute not in function.input_names:
        return None
    first = next((item for item in forward.body if not is_docstring(item)), None)
    context = function.context_name(forward)
    edit = line_before(function.file, first, f"{context}.{attribute} = {attribute}") if first is not None else None
    return Rewrite(FixSafety.UNSAFE, (edit,)) if edit is not None else None


def _savers(function: AutogradFunction) -> list[FunctionNode]:
    return [function.saver] if function.saver is not None else []


def _set_by(function: AutogradFunction) -> frozenset[str]:
    """The attributes that any method of the class sets on anything, and what the class itself defines."""
    found = {method.name for method in function.own_methods}
    for node in function.file.nodes_in(function.node, ast.Attribute):
        if not isinstance(node.ctx, ast.Load):
            found.add(node.attr)
    methods = [method for method in (function.forward, function.setup_context, function.backward) if method is not None]
    for method in methods:
        found |= {
            node.attr
            for node in own_nodes(method)
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)
        }
    for statement in function.node.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(found)


def _may_be_set_elsewhere(function: AutogradFunction) -> bool:
    """Whether the context is given to a function, kept somewhere, or asked whether it has an attribute."""
    for method in (function.forward, function.setup_context, function.backward):
        if method is None:
            continue
        context = function.context_name(method)
        for node in own_nodes(method):
            if isinstance(node, ast.Try) and method is function.backward:
                return True
            if isinstance(node, ast.Name) and node.id == context and not _is_plain(function.file, node):
                return True
    return False


def _is_plain(file: FileContext, name: ast.Name) -> bool:
    """`ctx.attribute`, but not `ctx.__dict__`."""
    parent = file.parent(name)
    return isinstance(parent, ast.Attribute) and parent.attr != "__dict__"
