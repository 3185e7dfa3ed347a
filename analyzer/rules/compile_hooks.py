"""Hooks that come after a module was compiled (GP511)."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.syntax import FunctionNode, dotted_name
from analyzer.tensor_evidence import is_module_base

_REGISTRATIONS = (
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
    "register_backward_hook",
)
_SETUP_WORDS = ("init", "setup", "build")


class HookAfterCompile(Rule):
    id = "GP511"
    name = "hook-registered-after-compile"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("compile_equivalence",)
    torch_versions = "2.13"
    triggers = _REGISTRATIONS
    documentation = Documentation(
        what_it_does=(
            "Finds hooks that a module registers on one of its parts in a method other than `__init__` (and those that "
            "`__init__` calls), and hooks that a function registers on parts of a model after it has compiled it. "
            "Hooks on tensors are fine, and so are hooks on the compiled module itself."
        ),
        why_is_this_bad=(
            "torch.compile looks at the hooks of a model's parts once, when it compiles: on torch 2.13 every kind of "
            "module hook that is added to a part after the first compiled call never runs, without a word. The "
            "features "
            "stay empty, the gradient is not scaled."
        ),
        faulty_example=(
            "import torch\nfrom torch import nn\n\n\nclass Tapped(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.body = nn.Linear(4, 4)\n        self.kept = None\n\n"
            "    def tap(self):\n        self.body.register_forward_hook(self._keep)\n\n"
            "    def _keep(self, module, args, out):\n        self.kept = out.detach()\n\n"
            "    def forward(self, x):\n        return self.body(x)\n"
        ),
        right_example=(
            "import torch\nfrom torch import nn\n\n\nclass Tapped(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.body = nn.Linear(4, 4)\n        self.kept = None\n"
            "        self.body.register_forward_hook(self._keep)\n\n"
            "    def _keep(self, module, args, out):\n        self.kept = out.detach()\n\n"
            "    def forward(self, x):\n        return self.body(x)\n"
        ),
        fix_safety="No automatic fix: where the hook belongs, or what replaces it, is for the author to say.",
    )
    valid = (
        "from torch import nn\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a = nn.Linear(2, 2)\n        self.a.register_forward_hook(print)\n"
        "    def forward(self, x):\n        return self.a(x)\n",
        "from torch import nn\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a = nn.Linear(2, 2)\n        self._watch()\n    def _watch(self):\n"
        "        self.a.register_forward_hook(print)\n    def forward(self, x):\n        return self.a(x)\n",
        # a tensor's hook
        "from torch import nn\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a = nn.Linear(2, 2)\n    def forward(self, x):\n        y = self.a(x)\n"
        "        y.register_hook(print)\n        return y\n",
        # no module itself: it looks at another's features and nothing is compiled here
        "class Extractor:\n    def attach(self, model):\n"
        "        self.handle = model.layer.register_forward_hook(print)\n",
        "import torch\ndef watch(model):\n    model.layer.register_forward_hook(print)\n"
        "    return torch.compile(model)\n",
        "from torch import nn\nclass M(nn.Module):\n    def watch(self, other):\n"
        "        other.register_forward_hook(print)\n    def forward(self, x):\n        return x\n",
        # the compiled module itself
        "import torch\ndef watch(model, x):\n    model.compile()\n    model(x)\n"
        "    model.register_forward_hook(print)\n    return model(x)\n",
        "from torch import nn\nclass M(nn.Module):\n    def watch(self):\n        self.register_forward_hook(print)\n"
        "    def forward(self, x):\n        return x\n",
        # taken off again in the same breath: the module runs as it is in between
        "from torch import nn\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a = nn.Linear(2, 2)\n    def probe(self, x):\n"
        "        handle = self.a.register_forward_hook(print)\n        self.a(x)\n        handle.remove()\n"
        "    def forward(self, x):\n        return self.a(x)\n",
    )
    invalid = (
        Invalid(
            "from torch import nn\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.a = nn.Linear(2, 2)\n    def tap(self):\n        self.a.register_forward_hook(print)\n"
            "    def forward(self, x):\n        return self.a(x)\n",
            (7,),
        ),
        Invalid(
            "from torch import nn\nclass M(nn.Module):\n    def __init__(self, n):\n        super().__init__()\n"
            "        self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(n))\n    def damp(self, i):\n"
            "        self.blocks[i].register_full_backward_pre_hook(lambda m, g: g)\n"
            "    def forward(self, x):\n        return self.blocks[0](x)\n",
            (7,),
        ),
        Invalid(
            "from torch import nn\nclass M(nn.Module):\n    def watch(self):\n        for part in self.children():\n"
            "            part.register_full_backward_hook(print)\n    def forward(self, x):\n        return x\n",
            (5,),
        ),
        Invalid(
            "import torch\ndef watch(model, x):\n    fast = torch.compile(model)\n    fast(x)\n"
            "    model.layer.register_forward_hook(print)\n    return fast(x)\n",
            (5,),
        ),
        Invalid(
            "import torch\ndef watch(model, x):\n    model.compile()\n    model(x)\n"
            "    model.layer.register_forward_pre_hook(print)\n",
            (5,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every registration that comes too late for a compiled module."""
        for call in file.calls(*_REGISTRATIONS):
            function = file.enclosing_function(call)
            if function is None or not isinstance(call.func, ast.Attribute) or _is_whole(file, call.func.value):
                continue
            compiled = _compiled_before(file, function, call)
            if compiled is not None:
                yield self._hit(call, "was compiled before", ((compiled, "compiled here"),))
            elif _is_late(file, function, call):
                yield self._hit(call, "may have been compiled by then", ())

    def _hit(self, call: ast.Call, when: str, related: tuple[tuple[ast.AST, str], ...]) -> Hit:
        what = call.func.attr.removeprefix("register_").replace("_", " ")  # type: ignore[attr-defined]
        return Hit(
            call,
            f"This {what} is registered on a part of a module that {when}: torch.compile (2.13) does not look for "
            "hooks of parts again, and it never runs. Register it in `__init__`, or do its work in `forward`.",
            related=related,
        )


def _compiled_before(file: FileContext, function: FunctionNode, call: ast.Call) -> ast.AST | None:
    """`torch.compile(model)` or `model.compile()` above a hook on that model, in one function."""
    name = _root(file, call.func.value)  # type: ignore[attr-defined]
    if name is None:
        return None
    for other in file.calls("compile"):
        if other.lineno >= call.lineno or file.enclosing_function(other) is not function:
            continue
        if file.qualified_name(other.func) == "torch.compile" and other.args:
            if dotted_name(other.args[0]) == name or _assigned_name(file, other) == name:
                return other
        elif isinstance(other.func, ast.Attribute) and dotted_name(other.func.value) == name and not other.args:
            return other
    return None


def _assigned_name(file: FileContext, call: ast.Call) -> str | None:
    parent = file.parent(call)
    return dotted_name(parent.targets[0]) if isinstance(parent, ast.Assign) and len(parent.targets) == 1 else None


def _is_late(file: FileContext, function: FunctionNode, call: ast.Call) -> bool:
    owner = file.parent(function)
    if not isinstance(owner, ast.ClassDef) or not any(is_module_base(file, base) for base in owner.bases):
        return False
    if not any(isinstance(node, ast.FunctionDef) and node.name == "forward" for node in owner.body):
        return False
    if any(word in function.name.lower() for word in _SETUP_WORDS) or _called_by_init(file, owner, function.name):
        return False
    own = _root(file, call.func.value) == "self"  # type: ignore[attr-defined]
    return own and not _is_taken_off(file, function, call)


def _called_by_init(file: FileContext, owner: ast.ClassDef, name: str) -> bool:
    initialisers = [node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    return any(
        isinstance(call.func, ast.Attribute) and call.func.attr == name
        for initialiser in initialisers
        for call in file.nodes_in(initialiser, ast.Call)
    )


def _is_taken_off(file: FileContext, function: FunctionNode, call: ast.Call) -> bool:
    """Whether the handle is removed in the same function."""
    name = _assigned_name(file, call)
    removed: Iterator[ast.Call] = (
        other for other in file.calls("remove") if file.enclosing_function(other) is function
    )
    return any(
        name is None or dotted_name(other.func.value) == name
        for other in removed
        if isinstance(other.func, ast.Attribute) and not other.args
    )


def _root(file: FileContext, expression: ast.expr) -> str | None:
    """The plain name that a chain of attributes, indices and calls starts at; what a loop variable runs over."""
    for _ in range(8):
        if isinstance(expression, (ast.Attribute, ast.Subscript)):
            expression = expression.value
        elif isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
            expression = expression.func.value
        elif isinstance(expression, ast.Name):
            source = _looped_over(file, expression)
            if source is None:
                return expression.id
            expression = source
        else:
            return None
    return None


def _is_whole(file: FileContext, expression: ast.expr) -> bool:
    """Whether it is the module itself that gets the hook: torch.compile sees those, measured on 2.13."""
    return isinstance(expression, ast.Name) and _looped_over(file, expression) is None


def _looped_over(file: FileContext, name: ast.Name) -> ast.expr | None:
    for outer in file.ancestors(name):
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return None
        if isinstance(outer, ast.For):
            targets = outer.target.elts if isinstance(outer.target, ast.Tuple) else [outer.target]
            if any(isinstance(target, ast.Name) and target.id == name.id for target in targets):
                iterated = outer.iter
                wraps = isinstance(iterated, ast.Call) and isinstance(iterated.func, ast.Name) and iterated.args
                return iterated.args[0] if wraps else iterated  # type: ignore[attr-defined]
    return None
