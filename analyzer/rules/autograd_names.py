"""Names in the methods of a custom Function that mean nothing there (GP322), or not on every path (GP323)."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator

from analyzer.autograd_functions import AutogradFunction, Save, autograd_functions
from analyzer.context import FileContext
from analyzer.facts import operations
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.function_edits import line_before
from analyzer.rules.autograd_examples import combined, split
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import FunctionNode, is_docstring, parameters
from analyzer.visible_names import VisibleNames

_BUILTINS = frozenset(dir(builtins))
# Functions whose names are also names that people give to tensors. Types (`list`, `int`) have uses of their own.
_TENSOR_LIKE = frozenset(
    {
        *("input", "id", "sum", "max", "min", "abs", "all", "any", "filter", "hash", "iter", "map", "next", "range"),
        *("round", "pow", "len", "vars", "slice", "format", "sorted", "reversed", "zip", "dir", "eval", "ord", "bin"),
    }
)


class UndefinedNameInFunction(Rule):
    """A method of a custom Function uses a name that does not exist there, or a builtin in the place of a tensor."""

    id = "GP322"
    name = "undefined-name-in-function"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    triggers = ("Function",)
    documentation = Documentation(
        what_it_does=(
            "Looks up every name that the methods of a custom `torch.autograd.Function` use: in the method, in the "
            "functions around it, in the module and among Python's builtins. A builtin function in the place of a "
            "tensor (`ctx.save_for_backward(input)` where the parameter is called `x`) counts as undefined. Files with "
            "`from … import *` are only checked for builtins."
        ),
        why_is_this_bad=(
            "Backward does not see the local names of forward: what it needs has to come through `ctx`. Python raises "
            "`NameError`, and only in the backward pass; everything before works. A builtin raises "
            "where it is saved or "
            "used (`save_for_backward can only save variables`)."
        ),
        faulty_example=combined(
            "ctx.save_for_backward(mem)\nreturn (mem > 0).float()",
            "(spk,) = ctx.saved_tensors\nreturn grad / (1 + mem.square())",
            "mem",
        ),
        right_example=combined(
            "ctx.save_for_backward(mem)\nreturn (mem > 0).float()",
            "(mem,) = ctx.saved_tensors\nreturn grad / (1 + mem.square())",
            "mem",
        ),
        fix_safety=(
            "Unsafe, because it guesses what was meant: the only input of forward for a builtin, or the name that "
            "forward saved a tensor under."
        ),
    )
    valid = (
        combined(
            "ctx.save_for_backward(input)\nreturn input * 2", "(input,) = ctx.saved_tensors\nreturn 2 * grad", "input"
        ),
        combined("scale = SCALE\nreturn x * scale", "return grad * SCALE", head="SCALE = 2.0\n\n\n"),
        combined("return helper(x)", "return helper(grad)", after="def helper(x):\n    return x * 2\n"),
        combined(
            "return x * 2",
            "import math\nfrom math import pi as p\nfor i in range(2):\n    pass\nwith open('f') as f:\n    pass\n"
            "try:\n    pass\nexcept ValueError as error:\n    print(error)\n"
            "g = [j * i for j in (1, 2)]\nif (n := 2) > 1:\n    pass\nreturn grad * math.pi * p * n * len(g)",
        ),
        "from torch.autograd import Function\nfrom helpers import *\n\n\nclass Op(Function):\n    @staticmethod\n"
        "    def forward(ctx, x):\n        return double(x)\n\n    @staticmethod\n    def backward(ctx, grad):\n"
        "        return double(grad)\n",
        "from torch.autograd import Function\n\n\ndef make(scale):\n    class Op(Function):\n        @staticmethod\n"
        "        def forward(ctx, x):\n            return x * scale\n\n        @staticmethod\n"
        "        def backward(ctx, grad):\n            return grad * scale\n\n    return Op.apply\n",
        combined("return x * 2", "return grad * _cached", after="def load():\n    global _cached\n    _cached = 2\n"),
        combined("return max(x, x) * len(x)", "g = sum([grad, grad])\nreturn g"),
        combined("def inner(y):\n    return y * z\nz = 2\nreturn inner(x)", "return (lambda g: g * 2)(grad)"),
        combined("return x * 2", "assert __name__\nreturn grad * 2"),
        combined(
            "return list(map(abs, [x]))[0]", "return functools.reduce(max, [grad])", head="import functools\n\n\n"
        ),
    )
    invalid = (
        Invalid(
            combined(
                "ctx.save_for_backward(mem)\nreturn (mem > 0).float()",
                "(spk,) = ctx.saved_tensors\nreturn grad / (1 + mem.square())",
                "mem",
            ),
            (15,),
        ),
        Invalid(
            combined(
                "ctx.save_for_backward(input)\nreturn x * x", "(input,) = ctx.saved_tensors\nreturn 2 * grad * input"
            ),
            (9,),
        ),
        Invalid(combined("return input.abs()", "return grad"), (9,)),
        Invalid(combined("return x * scale", "return grad"), (9,)),
        Invalid(combined("return x.view(input.shape)", "return grad"), (9,)),
        Invalid(combined("return x * 2", "return -sum * grad + sum[0]"), (13,)),
        Invalid(combined("y = x.exp()\nreturn y", "return grad * y"), (14,)),
        Invalid(split("ctx.n = 2\nreturn x * 2", "pass", "return grad * ctx.n"), (9,)),
        Invalid(combined("ctx.x = input\nreturn x * y", "return grad * ctx.x, grad", "x, y"), (9,)),
        Invalid(combined("return x * 2", "g = torch.relu(input)\nreturn g * grad"), (13,)),
        Invalid(combined("return x * 2", "return grad * hidden", after="def other():\n    hidden = 2\n"), (13,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every such name in every method, once a method."""
        functions = autograd_functions(file)
        if not functions:
            return
        visible = VisibleNames(file)
        for function in functions:
            for method in function.own_methods:
                file.check_deadline()
                for name, builtin in _undefined(file, method, visible):
                    yield _undefined_hit(function, method, name, builtin=builtin)


def _undefined(file: FileContext, method: FunctionNode, visible: VisibleNames) -> Iterator[tuple[ast.Name, bool]]:
    """(the first use of a name that means nothing, whether a builtin has that name)."""
    inside = visible.bound_in(method)
    around = visible.bound_around(method)
    seen: set[str] = set()
    for name in file.nodes_in(method, ast.Name):
        if not isinstance(name.ctx, ast.Load) or name.id in seen or name.id in inside or name.id in around:
            continue
        if file.statement(name) is method:
            continue  # a decorator, a default or an annotation
        if name.id in _BUILTINS:
            if name.id in _TENSOR_LIKE and _stands_for_tensor(file, name):
                seen.add(name.id)
                yield name, True
        elif not visible.open_ended and not _in_annotation(file, name):
            seen.add(name.id)
            yield name, False


def _in_annotation(file: FileContext, name: ast.Name) -> bool:
    """Annotations of local variables are never evaluated."""
    child: ast.AST = name
    for outer in file.ancestors(name):
        if isinstance(outer, (ast.AnnAssign, ast.arg)):
            return child is outer.annotation
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return child is outer.returns
        if isinstance(outer, ast.stmt):
            return False
        child = outer
    return False


def _stands_for_tensor(file: FileContext, name: ast.Name) -> bool:
    """Whether a builtin function is used as only a tensor can be: saved, calculated with, indexed."""
    parent = file.parent(name)
    result = False
    match parent:
        case ast.Call(func=ast.Attribute(attr="save_for_backward" | "mark_dirty")) | ast.BinOp() | ast.AugAssign():
            result = True
        case ast.UnaryOp(op=operator):
            result = isinstance(operator, ast.USub)
        case ast.Subscript(value=value):
            result = value is name
        case ast.Attribute(attr=attribute):
            result = operations().is_tensor_method(attribute) or attribute in {"shape", "dtype", "device", "size"}
        case ast.Assign(targets=[ast.Attribute()]):
            # Other builtins are functions that somebody may want to keep or hand on (`ctx.reduce = max`).
            result = name.id == "input"
        case ast.Call(func=function, args=arguments):
            is_torch = (file.qualified_name(function) or "").startswith("torch.")
            result = name.id == "input" and is_torch and name in arguments
    return result


def _undefined_hit(function: AutogradFunction, method: FunctionNode, name: ast.Name, *, builtin: bool) -> Hit:
    file = function.file
    if builtin:
        message = (
            f"`{name.id}` is no parameter or variable of `{method.name}`: this is Python's builtin "
            f"function of that name, "
            "and no tensor."
        )
        rewrite = _only_input(function, method, name)
    else:
        message = f"`{name.id}` is not defined in `{method.name}` nor around it: this raises NameError."
        rewrite = _saved_under(function, method, name)
        if function.forward is not None and method is function.backward and name.id in function.input_names:
            message = (
                f"`{name.id}` is a parameter of forward, which `{method.name}` does not see: this "
                f"raises NameError. Save it "
                "with `ctx.save_for_backward` and take it out of `ctx.saved_tensors` under this name."
            )
    return Hit(
        name,
        message,
        hypothesis={"function": function.name, "name": name.id, "symbol": file.symbol(name)},
        related=((method, "the parameters are listed here"),),
        fix=rewrite,
    )


def _only_input(function: AutogradFunction, method: FunctionNode, name: ast.Name) -> Rewrite | None:
    """Where forward has one input, that is what a builtin stands for."""
    if method is not function.forward or len(function.input_names) != 1 or function.is_variadic:
        return None
    places = [node for node in function.file.nodes_in(method, ast.Name) if node.id == name.id]
    if any(not isinstance(node.ctx, ast.Load) for node in places):
        return None
    replaced = tuple(Replacement(node, function.input_names[0]) for node in places)
    return Rewrite(FixSafety.UNSAFE, replaced)


def _saved_under(function: AutogradFunction, method: FunctionNode, name: ast.Name) -> Rewrite | None:
    """Where backward unpacks the tensor that forward saved under this name under another, unused one: use this one."""
    saves: list[Save] = function.saves or []
    if method is not function.backward or len(saves) != 1 or name.id not in saves[0].names:
        return None
    position = saves[0].names.index(name.id)
    for unpack in function.unpacks:
        target = unpack.node.targets[0] if isinstance(unpack.node, ast.Assign) else None
        if not isinstance(target, (ast.Tuple, ast.List)) or len(target.elts) != saves[0].count:
            continue
        given = target.elts[position]
        if not isinstance(given, ast.Name):
            continue
        uses = [node for node in function.file.nodes_in(method, ast.Name) if node.id == given.id]
        if len(uses) == 1:
            return Rewrite(FixSafety.UNSAFE, (Replacement(given, name.id),))
    return None


class GradientNotAssigned(Rule):
    """Backward returns a name that it only assigns under a condition."""

    id = "GP323"
    name = "gradient-not-always-assigned"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    fix = FixSafety.SAFE
    triggers = ("Function",)
    documentation = Documentation(
        what_it_does=(
            "Finds a backward that returns a name which is assigned under one condition only, such as "
            "`if ctx.needs_input_grad[1]:` or `if bias is not None:`, with no value for the other case."
        ),
        why_is_this_bad=(
            "As soon as the condition does not hold, because a weight is frozen or there is no bias, backward raises "
            "`UnboundLocalError` instead of returning None for that input."
        ),
        faulty_example=combined(
            "ctx.save_for_backward(x, w)\nreturn x * w",
            "x, w = ctx.saved_tensors\nif ctx.needs_input_grad[0]:\n    grad_x = grad * w\n"
            "if ctx.needs_input_grad[1]:\n    grad_w = grad * x\nreturn grad_x, grad_w",
            "x, w",
        ),
        right_example=combined(
            "ctx.save_for_backward(x, w)\nreturn x * w",
            "x, w = ctx.saved_tensors\ngrad_x = grad_w = None\nif ctx.needs_input_grad[0]:\n    grad_x = grad * w\n"
            "if ctx.needs_input_grad[1]:\n    grad_w = grad * x\nreturn grad_x, grad_w",
            "x, w",
        ),
        fix_safety="Safe: the name starts as None, which is what backward returns for an input without a gradient.",
    )
    valid = (
        combined("return x * w", "g = None\nif ctx.needs_input_grad[1]:\n    g = grad\nreturn grad, g", "x, w"),
        combined(
            "return x * w", "if ctx.needs_input_grad[1]:\n    g = grad\nelse:\n    g = None\nreturn grad, g", "x, w"
        ),
        combined(
            "return x * w", "if ctx.needs_input_grad[1]:\n    g = grad\n    return grad, g\nreturn grad, None", "x, w"
        ),
        combined("return x * w", "if not ctx.flag:\n    raise ValueError\nelse:\n    g = grad\nreturn grad, g", "x, w"),
        combined("return x * w", "with torch.no_grad():\n    g = grad\nreturn grad, g", "x, w"),
        combined("return x * w", "if ctx.flag:\n    g = grad\nelse:\n    pass\nreturn grad, g", "x, w"),
        combined("return x * w", "if ctx.flag:\n    if ctx.other:\n        g = grad\nreturn grad, g", "x, w"),
        combined("return x * w", "for g in (grad, grad):\n    pass\nreturn grad, g", "x, w"),
        combined(
            "return x * w",
            "if ctx.mode == 1:\n    g = grad\nelif ctx.mode == 2:\n    g = -grad\nreturn grad, g",
            "x, w",
        ),
        combined(
            "return x * w", "if ctx.flag:\n    g = grad\nif ctx.flag:\n    return grad, g\nreturn grad, None", "x, w"
        ),
        combined("return x * w", "if ctx.flag:\n    grad = grad * 2\nreturn grad, grad", "x, w"),
    )
    invalid = (
        Invalid(combined("return x * w", "if ctx.needs_input_grad[1]:\n    g = grad\nreturn grad, g", "x, w"), (15,)),
        Invalid(combined("return x * w", "if ctx.has_bias:\n    g = grad.sum(0)\nreturn grad, g", "x, w"), (15,)),
        Invalid(
            combined("ctx.b = b\nreturn x + b", "if ctx.b is not None:\n    g = grad\nreturn grad, g", "x, b"), (16,)
        ),
        Invalid(
            combined(
                "return x * w",
                "if ctx.needs_input_grad[0]:\n    gx = grad\nif ctx.needs_input_grad[1]:\n    gw = grad\nreturn gx, gw",
                "x, w",
            ),
            (17, 17),
        ),
        # only a note: backward does not run at all unless its one input needs the gradient
        Invalid(combined("return x * 2", "if ctx.needs_input_grad[0]:\n    g = grad\nreturn g"), (15,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every name that a backward returns at its end."""
        for function in autograd_functions(file):
            backward = function.backward
            if backward is None:
                continue
            given = {argument.arg for argument in parameters(backward)}
            last = backward.body[-1]
            if not isinstance(last, ast.Return) or last.value is None:
                continue
            items = last.value.elts if isinstance(last.value, ast.Tuple) else [last.value]
            for item in items:
                if isinstance(item, ast.Name) and item.id not in given:
                    branch = _only_branch(function, backward, item)
                    if branch is not None:
                        yield _unassigned_hit(function, item, branch)


def _only_branch(function: AutogradFunction, backward: FunctionNode, name: ast.Name) -> ast.If | None:
    """The `if` without alternative that holds every assignment to a name that may be unassigned at the end."""
    bindings, may_be_unassigned = function.file.values.bindings(backward).reaching(name.id, backward.body[-1])
    if not bindings or not may_be_unassigned:
        return None
    branches = {outer for binding in bindings for outer in _branches(function.file, binding.statement, backward)}
    only = branches.pop() if len(branches) == 1 else None
    if not isinstance(only, ast.If) or only.orelse or only not in backward.body:
        return None
    return only if _is_flag(only.test) else None


def _branches(file: FileContext, statement: ast.stmt, backward: FunctionNode) -> Iterator[ast.AST]:
    """Everything between a statement and the function that may or may not run."""
    for outer in file.ancestors(statement):
        if outer is backward:
            return
        if not isinstance(outer, (ast.With, ast.AsyncWith)):
            yield outer


def _is_flag(test: ast.expr) -> bool:
    """A plain yes or no: `ctx.needs_input_grad[1]`, `ctx.flag`, `bias is not None`."""
    match test:
        case ast.Compare(ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
        case ast.Subscript(value=ast.Attribute(attr="needs_input_grad")):
            return True
        case ast.BoolOp(values=values):
            return all(_is_flag(value) for value in values)
    return isinstance(test, (ast.Name, ast.Attribute))


def _unassigned_hit(function: AutogradFunction, name: ast.Name, branch: ast.If) -> Hit:
    file = function.file
    asked = [
        node for node in ast.walk(branch.test) if isinstance(node, ast.Attribute) and node.attr == "needs_input_grad"
    ]
    gradients = sum(bool(function.receives_gradient(position)) for position in range(len(function.inputs)))
    certain = not asked or gradients > 1 or not function.gradients
    edit = _start_as_none(file, function, name)
    return Hit(
        name,
        f"`{name.id}` is only assigned where `{file.source(branch.test)}` holds: otherwise backward raises "
        f"UnboundLocalError. Start with `{name.id} = None`.",
        severity=None if certain else Severity.NOTE,
        hypothesis={"function": function.name, "name": name.id, "symbol": file.symbol(name)},
        related=((branch.test, "it is assigned under this condition"),),
        fix=Rewrite(FixSafety.SAFE, (edit,)) if edit is not None else None,
    )


def _start_as_none(file: FileContext, function: AutogradFunction, name: ast.Name) -> Replacement | None:
    backward = function.backward
    assert backward is not None
    first = next((item for item in backward.body if not is_docstring(item)), None)
    return line_before(file, first, f"{name.id} = None") if first is not None else None
