"""Python integers that a module changes in its forward pass (GP506)."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.compiled_regions import asks_for_compiling, compiled_regions
from analyzer.context import FileContext
from analyzer.facts import graph_breaks
from analyzer.findings import Confidence, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.syntax import FunctionNode
from analyzer.tensor_evidence import is_module_method

# With this, torch.compile traces integers of modules as unknowns.
_ALLOWED = "allow_unspec_int_on_nn_module"


class IntegerChangedInForward(Rule):
    id = "GP506"
    name = "integer-attribute-changed-in-forward"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("compile_equivalence",)
    torch_versions = "2.13"
    triggers = ("forward",)
    documentation = Documentation(
        what_it_does=(
            "Finds integer attributes of a module that its `forward` (or a method that `forward` calls) counts up or "
            "down: `self.step += 1`. Where the number is used in the forward pass, or the file compiles the module, "
            "it is a warning, otherwise a note. Floats, tensors and buffers are fine, and so is an integer that is "
            "set to a size of the input."
        ),
        why_is_this_bad=(
            "The compiler takes the integers of a module for constants and guards them: every call with another value "
            "compiles again. On torch 2.13, twelve calls built eight graphs and then ran without a compiler (GB0039, "
            "the recompile limit), even where nothing but the counting touched the number. It is also not in the "
            "state dict: a resumed run starts from zero."
        ),
        faulty_example=(
            "import torch\nfrom torch import nn\n\n\nclass Warmup(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.seen = 0\n\n    def forward(self, x):\n        self.seen += 1\n"
            "        return x * min(self.seen / 100, 1)\n"
        ),
        right_example=(
            "import torch\nfrom torch import nn\n\n\nclass Warmup(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.register_buffer('seen', torch.zeros(()))\n\n"
            "    def forward(self, x):\n        self.seen += 1\n        return x * (self.seen / 100).clamp(max=1)\n"
        ),
        fix_safety="No automatic fix: what reads the number must take a tensor.",
    )
    valid = (
        "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('n', torch.zeros(()))\n    def forward(self, x):\n        self.n += 1\n"
        "        return x * self.n\n",
        # two graphs only: floats become unknowns at the second compilation
        "from torch import nn\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.decay = 1.0\n    def forward(self, x):\n        self.decay *= 0.9\n"
        "        return x * self.decay\n",
        "from torch import nn\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.n = 0\n    def forward(self, x):\n        self.n = x.shape[0]\n        return x * self.n\n",
        "from torch import nn\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.n = 0\n    def tick(self):\n        self.n += 1\n    def forward(self, x):\n"
        "        return x * self.n\n",
        "class Counter:\n    def __init__(self):\n        self.n = 0\n    def forward(self, x):\n        self.n += 1\n"
        "        return x * self.n\n",
        "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.n = 0\n    def forward(self, x):\n        if not torch.compiler.is_compiling():\n"
        "            self.n += 1\n        return x * self.n\n",
        "import torch\nfrom torch import nn\ntorch._dynamo.config.allow_unspec_int_on_nn_module = True\n"
        "class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.n = 0\n"
        "    def forward(self, x):\n        self.n += 1\n        return x * self.n\n",
        "from torch import nn\nclass M(nn.Module):\n    def forward(self, x):\n        n = 0\n        for y in x:\n"
        "            n += 1\n        return x * n\n",
        # initialised with something else than an integer
        "from torch import nn\nclass M(nn.Module):\n    def __init__(self, start):\n        super().__init__()\n"
        "        self.seen = []\n    def forward(self, x):\n        self.seen += [x.shape]\n        return x\n",
    )
    invalid = (
        Invalid(
            "from torch import nn\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.n = 0\n    def forward(self, x):\n        self.n += 1\n        return x * self.n\n",
            (7,),
        ),
        Invalid(
            "from torch import nn\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.n = 0\n    def forward(self, x):\n        self.n = self.n + 1\n        return x / self.n\n",
            (7,),
        ),
        Invalid(
            "from torch import nn\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.n = 10\n    def tick(self):\n        self.n -= 1\n    def forward(self, x):\n"
            "        self.tick()\n        return x if self.n > 0 else x * 2\n",
            (7,),
        ),
        Invalid(
            "from torch import nn\nclass M(nn.Module):\n    n = 0\n    def forward(self, x):\n        self.n += 1\n"
            "        if self.n < 100:\n            return x\n        return x * 2\n",
            (5,),
        ),
        # only counted: a note, and a warning where the file compiles it
        Invalid(
            "from torch import nn\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.calls = 0\n    def forward(self, x):\n        self.calls += 1\n        return x\n",
            (7,),
        ),
        Invalid(
            "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n"
            "        self.calls = 0\n    def forward(self, x):\n        self.calls += 1\n        return x\n"
            "m = torch.compile(M())\n",
            (8,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every change of an integer of `self` in a forward pass."""
        if _ALLOWED in file.text:
            return
        for function in file.functions:
            if function.name == "forward" and is_module_method(file, function):
                for method in _with_helpers(file, function):
                    yield from self._changes(file, method, function)

    def _changes(self, file: FileContext, method: FunctionNode, forward: FunctionNode) -> Iterator[Hit]:
        owner = file.enclosing_class(forward)
        if owner is None:
            return
        changes: list[ast.AugAssign | ast.Assign] = [*file.nodes_in(method, ast.AugAssign)]
        changes.extend(file.nodes_in(method, ast.Assign))
        for statement in changes:
            name = _counted(statement)
            if name is None or asks_for_compiling(file, statement):
                continue
            first = _integer_start(file, owner, name)
            if first is None:
                continue
            region = compiled_regions(file).of(statement)
            read = _is_read(file, forward, name, statement) or _is_read(file, method, name, statement)
            related: tuple[tuple[ast.AST, str], ...] = ((first, "an integer from here on"),)
            if region is not None:
                related = (*related, (region.node, "compiled here"))
            yield Hit(
                statement,
                f"`self.{name}` is a Python integer that changes with every call: compiled code is compiled anew for "
                f"each value, until the recompile limit ends it ({graph_breaks().numbers(self.id)[0]} of torch "
                f"{graph_breaks().version}). Keep it in a tensor: `self.register_buffer(...)`.",
                severity=None if region is not None or read else Severity.NOTE,
                hypothesis={"attribute": name},
                related=related,
            )


def _with_helpers(file: FileContext, forward: FunctionNode) -> Iterator[FunctionNode]:
    """The forward pass and the methods of the same class that it calls on `self`."""
    yield forward
    owner = file.parent(forward)
    if not isinstance(owner, ast.ClassDef):
        return
    called = {
        call.func.attr
        for call in file.nodes_in(forward, ast.Call)
        if isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "self"
    }
    for node in owner.body:
        if isinstance(node, ast.FunctionDef) and node.name in called and node is not forward:
            yield node


def _counted(statement: ast.AugAssign | ast.Assign) -> str | None:
    """The attribute that a statement counts up or down by a literal."""
    target: ast.expr
    if isinstance(statement, ast.AugAssign):
        target, operator, step = statement.target, statement.op, statement.value
    else:
        value = statement.value
        if len(statement.targets) != 1 or not isinstance(value, ast.BinOp):
            return None
        target, operator, step = statement.targets[0], value.op, value.right
        if not isinstance(target, ast.Attribute) or ast.unparse(value.left) != ast.unparse(target):
            return None
    counts = isinstance(operator, (ast.Add, ast.Sub, ast.Mult)) and isinstance(step, ast.Constant)
    if not counts or type(step.value) is not int or not isinstance(target, ast.Attribute):  # type: ignore[attr-defined]
        return None
    return target.attr if isinstance(target.value, ast.Name) and target.value.id == "self" else None


def _integer_start(file: FileContext, owner: ast.ClassDef, name: str) -> ast.AST | None:
    """Where the class sets an attribute to an integer literal, if that is all it is ever set to at the start."""
    found: ast.AST | None = None
    settings: list[ast.Assign | ast.AnnAssign] = [*file.nodes_in(owner, ast.Assign)]
    settings.extend(file.nodes_in(owner, ast.AnnAssign))
    for statement in settings:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if not any(_names(target, name, statement, owner, file) for target in targets):
            continue
        if isinstance(statement, ast.Assign) and _counted(statement) is not None:
            continue
        if not (isinstance(statement.value, ast.Constant) and type(statement.value.value) is int):
            return None
        found = found or statement
    return found


def _names(target: ast.expr, name: str, statement: ast.stmt, owner: ast.ClassDef, file: FileContext) -> bool:
    if isinstance(target, ast.Attribute):
        return target.attr == name and isinstance(target.value, ast.Name) and target.value.id == "self"
    return isinstance(target, ast.Name) and target.id == name and file.parent(statement) is owner


def _is_read(file: FileContext, function: FunctionNode, name: str, change: ast.stmt) -> bool:
    """Whether the attribute is read in the function, other than to count it."""
    for attribute in file.nodes_in(function, ast.Attribute):
        if attribute.attr == name and isinstance(attribute.ctx, ast.Load) and file.statement(attribute) is not change:
            return isinstance(attribute.value, ast.Name) and attribute.value.id == "self"
    return False
