"""Custom Functions under the transforms of `torch.func`: not supported (GP316), or forgotten once compiled (GP328)."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.autograd_functions import AutogradFunction, autograd_functions
from analyzer.context import FileContext
from analyzer.findings import Confidence, Severity
from analyzer.function_transforms import DIFFERENTIATING, reached, transforms
from analyzer.gradient_returns import own_nodes
from analyzer.rules.autograd_examples import combined, split
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.syntax import terminal_name

# Their derivative is zero: a hand-written backward is the only reason why a gradient comes through.
_FLAT = frozenset(
    {"round", "floor", "ceil", "sign", "trunc", "heaviside", "argmax", "bernoulli", "one_hot", "bucketize"}
)
_USE = "def energy(x):\n    return Op.apply(x).sum()\n\n\ndef forces(x):\n    return torch.func.grad(energy)(x)\n"


def _applied(file: FileContext) -> Iterator[tuple[AutogradFunction, ast.Call, ast.Call, str]]:
    """(Function, its application, the transform's call, the transform's name), each application once."""
    functions = autograd_functions(file)
    if not functions:
        return
    seen: set[tuple[ast.Call, str]] = set()
    for call, transform, given in transforms(file):
        file.check_deadline()
        inside = {node for function in reached(file, given) for node in ast.walk(function)}
        for function in functions:
            for application in function.applications:
                if application in inside and (application, transform) not in seen:
                    seen.add((application, transform))
                    yield function, application, call, transform


class FunctionWithoutTransforms(Rule):
    """A custom Function that `torch.func` can't take, in a file that uses it."""

    id = "GP316"
    name = "function-without-transforms"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    torch_versions = "2.13"
    triggers = ("torch.func", "import func", "vmap", "functorch")
    documentation = Documentation(
        what_it_does=(
            "Finds a custom `torch.autograd.Function` that is applied in a function given to `torch.func.grad`, `vjp`, "
            "`jacrev` or `vmap`, although its forward takes the context (there is no `setup_context`), or although "
            "it has "
            "no rule for `vmap`. In a file that uses `torch.func` for something else, a Function whose forward takes "
            "the "
            "context is a note."
        ),
        why_is_this_bad=(
            "Torch raises: `it must override the setup_context staticmethod`, and for vmap that a `vmap` "
            "staticmethod or "
            "`generate_vmap_rule = True` is missing. Everything without a transform works."
        ),
        faulty_example=combined(
            "ctx.save_for_backward(x)\nreturn x * x", "return 2 * grad * ctx.saved_tensors[0]", after=_USE
        ),
        right_example=split(
            "return x * x", "ctx.save_for_backward(*inputs)", "return 2 * grad * ctx.saved_tensors[0]", after=_USE
        ),
        fix_safety="No automatic fix: forward has to be split in two.",
    )
    valid = (
        split("return x * x", "pass", "return 2 * grad", after=_USE),
        combined("return x * x", "return 2 * grad", after="def energy(x):\n    return Op.apply(x).sum()\n"),
        split(
            "return x * x",
            "pass",
            "return 2 * grad",
            after="def many(x):\n    return torch.vmap(Op.apply)(x)\n",
        ).replace("class Op(Function):\n", "class Op(Function):\n    generate_vmap_rule = True\n\n"),
        # not the torch.func of the name
        combined(
            "return x",
            "return grad",
            after="def energy(x):\n    return Op.apply(x).sum()\n\n\ng = torch.autograd.grad(energy, 1)\n",
        ),
    )
    invalid = (
        Invalid(combined("return x * x", "return 2 * grad", after=_USE), (17,)),
        Invalid(
            combined(
                "return x * x",
                "return 2 * grad",
                after="class Field(torch.nn.Module):\n    def energy(self, x):\n        return self.inner(x)\n\n"
                "    def inner(self, x):\n        return Op.apply(x)\n\n    def forward(self, x):\n"
                "        return torch.func.vjp(self.energy, x)\n",
            ),
            (21,),
        ),
        Invalid(
            split(
                "return x * x",
                "pass",
                "return 2 * grad",
                after="def many(x):\n    return torch.vmap(lambda y: Op.apply(y))(x)\n",
            ),
            (21,),
        ),
        # only a note: torch.func is used for something else here
        Invalid(
            combined("return x * x", "return 2 * grad", after="def f(x):\n    return torch.func.grad(torch.sin)(x)\n"),
            (6,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Applications under a transform; elsewhere the class itself, as a note."""
        functions = autograd_functions(file)
        if not functions:
            return
        found: set[ast.AST] = set()
        for function, application, call, transform in _applied(file):
            if application in found or not function.is_readable:
                continue
            lacks_setup = function.setup_context is None
            if not lacks_setup and (transform != "vmap" or _has_vmap_rule(function)):
                continue
            found.update((application, function.node))
            what = (
                "its forward takes the context: split it into `forward` and `setup_context`"
                if lacks_setup
                else "it has no rule for it: write `vmap` or set `generate_vmap_rule = True`"
            )
            yield Hit(
                application,
                f"`{function.name}` raises under `{transform}`, because {what}.",
                hypothesis={"function": function.name, "transform": transform, "symbol": file.symbol(application)},
                related=((call, "it is transformed here"), (function.node, "the Function")),
            )
        if not any(True for _ in transforms(file)) and not _uses_transforms(file):
            return
        for function in functions:
            if function.node not in found and function.is_readable and function.setup_context is None:
                yield Hit(
                    function.node,
                    f"`{function.name}` takes the context in forward, so that the transforms of `torch.func`, which "
                    f"this "
                    "file uses, can't be applied to it.",
                    severity=Severity.NOTE,
                    hypothesis={"function": function.name, "symbol": file.symbol(function.node)},
                )


def _uses_transforms(file: FileContext) -> bool:
    calls = file.calls(*DIFFERENTIATING, "vmap")
    return any((file.qualified_name(call.func) or "").startswith(("torch.func.", "functorch.")) for call in calls)


def _has_vmap_rule(function: AutogradFunction) -> bool:
    names: set[str | None] = {method.name for method in function.own_methods}
    for statement in function.node.body:
        if isinstance(statement, ast.Assign):
            names |= {terminal_name(target) for target in statement.targets}
        elif isinstance(statement, ast.AnnAssign):
            names.add(terminal_name(statement.target))
    return bool(names & {"vmap", "generate_vmap_rule"})


class BackwardForgottenByCompiler(Rule):
    """A hand-written backward that torch.compile forgets under a transform of torch.func."""

    id = "GP328"
    name = "backward-forgotten-when-compiled"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("compile_equivalence",)
    torch_versions = "2.13"
    triggers = ("torch.func", "import func", "functorch")
    documentation = Documentation(
        what_it_does=(
            "Finds a custom `torch.autograd.Function` with a hand-written gradient for something that has none "
            "(`round`, "
            "`sign`, a comparison), applied in a function that `torch.func.grad`, `vjp`, `jacrev` and the like "
            "differentiate. Other Functions there are a note: their backward is the derivative anyway, or should be."
        ),
        why_is_this_bad=(
            "`torch.compile` traces forward through the transform and differentiates that, without the hand-written "
            "backward (measured with torch 2.13 for `grad`, `vjp` and `jacrev`): the gradient of a straight-through "
            "rounding is then zero, while the same code gives the right one uncompiled. `torch.autograd.grad` keeps it."
        ),
        faulty_example=split("return torch.round(x)", "pass", "return grad", after=_USE),
        right_example=combined(
            "return x * 2",
            "return grad * 2",
            after=(
                "def energy(x):\n    return (x + (torch.round(x) - x).detach()).sum()\n\n\ndef forces(x):\n"
                "    return torch.func.grad(energy)(x)\n"
            ),
        ),
        fix_safety=(
            "No automatic fix: write it without a Function, `x + (round(x) - x).detach()`, or use "
            "`torch.autograd.grad`."
        ),
    )
    valid = (
        split("return torch.round(x)", "pass", "return grad", after="def energy(x):\n    return Op.apply(x).sum()\n"),
        split(
            "return torch.round(x)",
            "pass",
            "return grad",
            after=(
                "def energy(x):\n    return Op.apply(x).sum()\n\n\n"
                "def f(x):\n    return torch.autograd.grad(energy(x), x)\n"
            ),
        ),
        # this raises in any case, which GP316 says
        combined("return torch.round(x)", "return grad", after=_USE),
    )
    invalid = (
        Invalid(split("return torch.round(x)", "pass", "return grad", after=_USE), (21,)),
        Invalid(
            split("return (x > 0).float()", "ctx.save_for_backward(*inputs)", "return grad / 2", after=_USE), (21,)
        ),
        Invalid(
            split(
                "return x.sign()",
                "pass",
                "return grad",
                after="class Field(torch.nn.Module):\n    def energy(self, x):\n        return Op.apply(x).sum()\n\n"
                "    def forward(self, x):\n        return torch.func.grad(self.energy)(x)\n",
            ),
            (22,),
        ),
        # only notes
        Invalid(split("if x.ndim == 2:\n    return x\nreturn x * x", "pass", "return grad * 2", after=_USE), (23,)),
        Invalid(split("return x * x", "ctx.save_for_backward(*inputs)", "return grad * 2", after=_USE), (21,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every application of a Function that torch.func accepts and differentiates."""
        for function, application, call, transform in _applied(file):
            if transform not in DIFFERENTIATING or function.setup_context is None or not function.is_readable:
                continue
            flat = _is_flat(function)
            yield Hit(
                application,
                f"compiled, `{transform}` differentiates the forward of `{function.name}` and forgets its backward"
                + (
                    ": the gradient is then zero."
                    if flat
                    else ", so that only a backward that is the derivative stays right."
                ),
                severity=None if flat else Severity.NOTE,
                hypothesis={"function": function.name, "transform": transform, "symbol": file.symbol(application)},
                related=((call, "it is differentiated here"), (function.node, "the Function")),
            )


def _is_flat(function: AutogradFunction) -> bool:
    """Whether forward goes through something whose derivative is zero; what an `if` asks for is not part of it."""
    assert function.forward is not None
    file = function.file
    for node in own_nodes(function.forward):
        if isinstance(node, ast.Call) and terminal_name(node.func) in _FLAT:
            return True
        asked = isinstance(file.parent(node), (ast.If, ast.IfExp, ast.While, ast.Assert, ast.BoolOp))
        if isinstance(node, ast.Compare) and not asked and file.values.value(node).is_discrete:
            return True
    return False
