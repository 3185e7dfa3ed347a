"""Hooks on gradients that change what they are shown, or that can't be called (GP320)."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.facts import operations
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import FunctionNode, parameters
from analyzer.tensor_writes import Write, writes_of

# How many arguments torch 2.13 calls each hook with, and which of them are gradients.
_HOOKS: dict[str, tuple[int, tuple[int, ...]]] = {
    "register_hook": (1, (0,)),
    "register_post_accumulate_grad_hook": (1, ()),
    "register_full_backward_hook": (3, (1, 2)),
    "register_full_backward_pre_hook": (2, (1,)),
    "register_forward_hook": (3, ()),
    "register_forward_pre_hook": (2, ()),
}
_HEAD = "import torch\nfrom torch import nn\n\n\n"


class GradientHook(Rule):
    """A hook writes into the gradient it is shown, or takes another number of arguments than torch passes."""

    id = "GP320"
    name = "faulty-gradient-hook"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("gradient_flow",)
    torch_versions = "2.13"
    fix = FixSafety.SAFE
    triggers = ("_hook",)
    documentation = Documentation(
        what_it_does=(
            "Finds a hook, a lambda or a function of the same file, given to `register_hook`, "
            "`register_full_backward_hook` and the like, that changes a gradient in place, and one that can't take the "
            "arguments that torch calls it with."
        ),
        why_is_this_bad=(
            "The gradient that a hook is shown may be on its way to another branch: changed in place, it changes there "
            "too (the caller's buffer went from 1 to 5 in our measurement), or raises where it was expanded. A hook "
            "with "
            "another number of parameters raises TypeError in the backward pass."
        ),
        faulty_example=(
            f"{_HEAD}def scale(x):\n    y = x * 2\n    y.register_hook(lambda grad: grad.mul_(0.5))\n    return y\n"
        ),
        right_example=(
            f"{_HEAD}def scale(x):\n    y = x * 2\n    y.register_hook(lambda grad: grad.mul(0.5))\n    return y\n"
        ),
        fix_safety="Safe: returns a new tensor, which takes the place of the gradient just the same.",
    )
    valid = (
        f"{_HEAD}def f(y):\n    y.register_hook(lambda grad: grad * 0.5)\n",
        f"{_HEAD}def f(y):\n    y.register_hook(lambda grad: grad.clone().mul_(0.5))\n",
        f"{_HEAD}def f(y, seen):\n    y.register_hook(seen.append)\n",
        f"{_HEAD}def hook(grad):\n    grad = grad.clone()\n    grad[0] = 0\n    return grad\n\n\ndef f(y):\n"
        f"    y.register_hook(hook)\n",
        f"{_HEAD}def f(m, stats):\n    m.register_forward_hook(lambda m, i, o: stats.update(a=o))\n",
        f"{_HEAD}def f(m):\n    m.register_full_backward_hook(lambda *a: None)\n"
        f"    m.register_forward_hook(lambda m, i, o=None: None)\n",
        f"{_HEAD}def f(m):\n    m.register_forward_hook(lambda m, a, k, o: None, with_kwargs=True)\n",
        f"{_HEAD}def f(y):\n    y.grad_fn.register_hook(lambda grad_in, grad_out: None)\n",
        # not hooks of torch: another library's registry
        "import torch\n\n\ndef f(plugin):\n    plugin.register_plugin_hook(lambda: None)\n",
        f"{_HEAD}class A:\n    def hook(self, grad):\n        return grad * 2\n\n    def f(self, y):\n"
        f"        y.register_hook(self.hook)\n",
        # accumulated gradients belong to their parameter
        f"{_HEAD}def f(p):\n    p.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(0.5))\n",
        f"{_HEAD}def hook(grad, scale):\n    return grad\n\n\nclass hook:\n    pass\n\n\ndef f(y, hook):\n"
        f"    y.register_hook(hook)\n",
    )
    invalid = (
        Invalid(f"{_HEAD}def f(y):\n    y.register_hook(lambda grad: grad.mul_(0.5))\n", (6,)),
        Invalid(f"{_HEAD}def f(y):\n    def hook(grad):\n        grad[0] = 0\n    y.register_hook(hook)\n", (7,)),
        Invalid(
            f"{_HEAD}def hook(grad):\n    grad *= 0.5\n    return grad\n\n\ndef f(y):\n    y.register_hook(hook)\n",
            (6,),
        ),
        Invalid(
            f"{_HEAD}class A:\n    def hook(self, module, grad_in, grad_out):\n        grad_in[0].clamp_(-1, 1)\n\n"
            "    def f(self, m):\n        m.register_full_backward_hook(self.hook)\n",
            (7,),
        ),
        Invalid(f"{_HEAD}def f(y):\n    y.register_hook(lambda: None)\n", (6,)),
        Invalid(f"{_HEAD}def f(m):\n    m.register_full_backward_hook(lambda m, g: g)\n", (6,)),
        Invalid(f"{_HEAD}def f(m):\n    m.register_forward_hook(lambda m, i: None)\n", (6,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every registration of a hook that is defined in this file."""
        reported: set[ast.AST] = set()
        for call in file.calls(*_HOOKS):
            if not isinstance(call.func, ast.Attribute) or not call.args or file.qualified_name(call.func) is not None:
                continue
            count, gradients = _HOOKS[call.func.attr]
            if any(keyword.arg in ("with_kwargs", None) for keyword in call.keywords):
                continue
            for hook, bound in _definitions(file, call.args[0]):
                names = [argument.arg for argument in (*hook.args.posonlyargs, *hook.args.args)][1 if bound else 0 :]
                # A node of the graph (`y.grad_fn`) has a `register_hook` as well, whose hook takes two arguments.
                if not (_takes(hook, names, count) or (call.func.attr == "register_hook" and _takes(hook, names, 2))):
                    yield _uncallable(file, call, hook, count, len(names))
                elif hook not in reported:
                    reported.add(hook)
                    chosen = frozenset(names[position] for position in gradients if position < len(names))
                    yield from _changes(file, call, hook, chosen)


def _definitions(file: FileContext, expression: ast.expr) -> Iterator[tuple[FunctionNode | ast.Lambda, bool]]:
    """(the function that is registered, whether it is a bound method); nothing where that is not certain."""
    if isinstance(expression, ast.Lambda):
        yield expression, False
        return
    is_method = isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name)
    name = expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")
    named = file.functions_by_name.get(name, [])
    if is_method and expression.value.id == "self":  # type: ignore[attr-defined]
        owner = file.enclosing_class(expression)
        found = [item for item in named if file.parent(item) is owner]
    elif isinstance(expression, ast.Name) and not _is_rebound(file, expression):
        found = [item for item in named if not isinstance(file.parent(item), ast.ClassDef)]
    else:
        return
    if len(found) == 1 and not found[0].decorator_list:
        yield found[0], is_method


def _is_rebound(file: FileContext, name: ast.Name) -> bool:
    """Whether a parameter or a variable hides the function of that name."""
    hidden = False
    for outer in file.ancestors(name):
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            hidden = hidden or any(argument.arg == name.id for argument in parameters(outer))
    return hidden or bool(file.values.definitions(name))


def _takes(hook: FunctionNode | ast.Lambda, names: list[str], count: int) -> bool:
    required = len(names) - len(hook.args.defaults)
    unfilled = any(default is None for default in hook.args.kw_defaults)
    return not unfilled and required <= count and (len(names) >= count or hook.args.vararg is not None)


def _uncallable(file: FileContext, call: ast.Call, hook: FunctionNode | ast.Lambda, count: int, taken: int) -> Hit:
    assert isinstance(call.func, ast.Attribute)
    return Hit(
        call.args[0],
        f"`{call.func.attr}` calls its hook with {count} argument{'s' if count != 1 else ''}, and this one takes "
        f"{taken}: "
        "it raises TypeError when it is called.",
        severity=Severity.ERROR,
        hypothesis={"hook": call.func.attr, "expected": count, "symbol": file.symbol(call)},
        related=((hook, "the hook"),),
    )


def _changes(
    file: FileContext, call: ast.Call, hook: FunctionNode | ast.Lambda, names: frozenset[str]
) -> Iterator[Hit]:
    """The first write into each gradient that a hook is shown."""
    body: list[ast.AST] = [hook.body] if isinstance(hook, ast.Lambda) else list(hook.body)
    writes = [write for part in body for node in ast.walk(part) for write in writes_of(file, node)]
    writes.sort(key=lambda write: (getattr(write.node, "lineno", 0), getattr(write.node, "end_col_offset", 0)))
    seen: set[str] = set()
    for write in writes:
        root = _root(file, write.target)
        if root is None or root.id not in names or root.id in seen:
            continue
        if file.values.definitions(root):
            continue  # given something else before
        seen.add(root.id)
        yield Hit(
            write.node,
            f"this hook changes `{root.id}` in place ({write.how}): the same tensor may be on its way to another "
            f"branch, "
            "which then gets the changed values. Return a new tensor.",
            hypothesis={"gradient": root.id, "symbol": file.symbol(write.node)},
            related=((call, "it is registered here"),),
            fix=_out_of_place(hook, write),
        )


def _root(file: FileContext, target: ast.expr) -> ast.Name | None:
    """The name whose memory a write reaches; a copy on the way ends the search."""
    while True:
        match target:
            case ast.Name():
                return target
            case ast.Subscript(value=value):
                target = value
            case ast.Call(func=ast.Attribute(attr=name, value=value)) if name.endswith("_") or name in {"view", "t"}:
                if file.qualified_name(target.func) is not None:
                    return None
                target = value
            case _:
                return None


def _out_of_place(hook: FunctionNode | ast.Lambda, write: Write) -> Rewrite | None:
    """`lambda g: g.mul(2)` for `lambda g: g.mul_(2)`: what is returned takes the place of the gradient."""
    node = write.node
    if not (isinstance(hook, ast.Lambda) and hook.body is node and isinstance(node, ast.Call)):
        return None
    if not (isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)):
        return None
    plain = node.func.attr.removesuffix("_")
    if plain == node.func.attr or not operations().returns_one_tensor(f"torch.Tensor.{plain}"):
        return None
    return Rewrite(FixSafety.SAFE, (Replacement(node.func, f"{node.func.value.id}.{plain}"),))
