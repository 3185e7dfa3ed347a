"""Python integers and lists that a module changes in its forward pass (GP506)."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from analyzer.compiled_regions import asks_for_compiling, compiled_regions
from analyzer.context import FileContext
from analyzer.facts import graph_breaks
from analyzer.findings import Confidence, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.syntax import FunctionNode
from analyzer.tensor_evidence import is_module_method

_RUN_BY_TORCH = frozenset({"__init__", "__call__", "forward"})
# With this, torch.compile traces integers of modules as unknowns.
_ALLOWED = "allow_unspec_int_on_nn_module"


def _is_switched_off(file: FileContext, owner: ast.ClassDef, statement: ast.stmt) -> bool:
    """Whether a statement waits for `self.x is not None`, and only methods that the file calls nowhere set it."""
    child: ast.AST = statement
    for outer in file.ancestors(statement):
        if outer is owner:
            return False
        if isinstance(outer, ast.If) and child in outer.body:
            waits_for = _is_not_none(outer.test)
            if waits_for is not None and not _may_be_set(file, owner, waits_for):
                return True
        child = outer
    return False


def _is_not_none(test: ast.expr) -> str | None:
    """`x` of `self.x is not None`."""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.IsNot):
        return None
    return _own_attribute(test.left)


def _may_be_set(file: FileContext, owner: ast.ClassDef, name: str) -> bool:
    """Whether code that the file itself runs gives an attribute something else than None."""
    starts_empty = False
    for assignment in file.nodes_in(owner, ast.Assign):
        if name not in [_own_attribute(target) for target in assignment.targets]:
            continue
        function = file.enclosing_function(assignment)
        if isinstance(assignment.value, ast.Constant) and assignment.value.value is None:
            starts_empty = starts_empty or (function is not None and function.name == "__init__")
        elif function is None or function.name in _RUN_BY_TORCH or file.calls(function.name):
            return True
    return not starts_empty


class StateChangedInForward(Rule):
    id = "GP506"
    name = "state-changed-in-forward"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("compile_equivalence", "finding_search")
    torch_versions = "2.13"
    triggers = ("forward",)
    documentation = Documentation(
        what_it_does=(
            "Finds integer attributes of a module (also in a dictionary) that its `forward`, or a method that it "
            "calls, "
            "counts up or down: `self.step += 1`, and lists that it makes longer and that nothing in the class "
            "empties. What is only counted or recorded is a note unless the file compiles the module, and so is what "
            "only happens once a method that the file calls nowhere has set an attribute that was `None`. Floats, "
            "tensors and buffers are fine, and so is an integer that is set to a size of the input."
        ),
        why_is_this_bad=(
            "The compiler takes the integers of a module for constants and guards them: every call with another value "
            "compiles again. On torch 2.13, twelve calls built eight graphs and then ran without a compiler (GB0039, "
            "the recompile limit), even where nothing but the counting touched the number; the length of a list is "
            "guarded in the same way. None of it is in the state dict: a resumed run starts from zero."
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
        # emptied by whoever reads it; or only recorded on demand
        "from torch import nn\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.seen = []\n    def take(self):\n        seen, self.seen = self.seen, []\n        return seen\n"
        "    def forward(self, x):\n        self.seen.append(x.detach())\n        return x\n",
        "from torch import nn\nclass M(nn.Module):\n    def __init__(self, record):\n        super().__init__()\n"
        "        self.seen = []\n        self.record = record\n    def forward(self, x):\n        if self.record:\n"
        "            self.seen.append(x.detach())\n        return x\n",
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
        Invalid(
            "from torch import nn\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.stats = {'n': 0}\n    def forward(self, x):\n        self.stats['n'] += 1\n"
            "        return x * self.stats['n']\n",
            (7,),
        ),
        Invalid(
            "from torch import nn\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.seen = []\n    def forward(self, x):\n        self.seen.append(x.mean().detach())\n"
            "        return x\n",
            (7,),
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
        """Every change of an integer, and every list that only grows, in a forward pass."""
        if _ALLOWED in file.text:
            return
        for function in file.functions:
            if function.name == "forward" and is_module_method(file, function):
                for method in _with_helpers(file, function):
                    yield from self._changes(file, method, function)
                    yield from self._growth(file, method, function)

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
            first = _start(file, owner, name, _is_integer)
            if first is None:
                continue
            read = _is_read(file, forward, name, statement) or _is_read(file, method, name, statement)
            read = read and not _is_switched_off(file, owner, statement)
            what = f"`self.{name}` is a Python integer that changes with every call"
            yield self._hit(file, statement, name, what, (first, "an integer from here on"), serious=read)

    def _growth(self, file: FileContext, method: FunctionNode, forward: FunctionNode) -> Iterator[Hit]:
        """`self.seen.append(x)` on a list that nothing in the class ever empties."""
        owner = file.enclosing_class(forward)
        if owner is None:
            return
        for call in file.nodes_in(method, ast.Call):
            name = _grown(call)
            if name is None or asks_for_compiling(file, call) or _is_conditional(file, call, method):
                continue
            first = _start(file, owner, name, _is_empty_list)
            if first is None or _is_emptied(file, owner, name, first):
                continue
            read = _is_read(file, forward, name, file.statement(call)) or _is_read(
                file, method, name, file.statement(call)
            )
            what = f"`self.{name}` grows with every call and is never emptied"
            yield self._hit(file, call, name, what, (first, "an empty list here"), serious=read)

    def _hit(
        self, file: FileContext, node: ast.AST, name: str, what: str, start: tuple[ast.AST, str], *, serious: bool
    ) -> Hit:
        region = compiled_regions(file).of(node)
        related = (start, (region.node, "compiled here")) if region is not None else (start,)
        return Hit(
            node,
            f"{what}: compiled code is compiled anew for each state, until the recompile limit ends it "
            f"({graph_breaks().numbers(self.id)[0]} of torch {graph_breaks().version}). Keep what is needed in a "
            f"tensor "
            "of fixed size: `self.register_buffer(...)`.",
            severity=None if region is not None or serious else Severity.NOTE,
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
    """The attribute (or the item of one) that a statement counts up or down by a literal."""
    target: ast.expr
    if isinstance(statement, ast.AugAssign):
        target, operator, step = statement.target, statement.op, statement.value
    else:
        value = statement.value
        if len(statement.targets) != 1 or not isinstance(value, ast.BinOp):
            return None
        target, operator, step = statement.targets[0], value.op, value.right
        if ast.unparse(value.left) != ast.unparse(target):
            return None
    counts = isinstance(operator, (ast.Add, ast.Sub, ast.Mult)) and isinstance(step, ast.Constant)
    if not counts or type(step.value) is not int:  # type: ignore[attr-defined]
        return None
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        target = target.value
    return _own_attribute(target)


def _own_attribute(expression: ast.expr) -> str | None:
    is_own = isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name)
    return expression.attr if is_own and expression.value.id == "self" else None  # type: ignore[attr-defined]


def _grown(call: ast.Call) -> str | None:
    """The attribute that `self.name.append(x)` makes longer."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("append", "extend"):
        return None
    return _own_attribute(call.func.value)


def _is_conditional(file: FileContext, node: ast.AST, method: FunctionNode) -> bool:
    """Whether it happens under an `if`: recording that can be turned off."""
    return any(isinstance(outer, ast.If) and method in file.ancestors(outer) for outer in file.ancestors(node))


def _is_integer(value: ast.expr | None) -> bool:
    """An integer literal, or a dictionary or list of them."""
    if isinstance(value, ast.Dict):
        return bool(value.values) and all(map(_is_integer, value.values))
    if isinstance(value, ast.List):
        return bool(value.elts) and all(map(_is_integer, value.elts))
    return isinstance(value, ast.Constant) and type(value.value) is int


def _is_empty_list(value: ast.expr | None) -> bool:
    return isinstance(value, ast.List) and not value.elts


def _is_emptied(file: FileContext, owner: ast.ClassDef, name: str, first: ast.AST) -> bool:
    """Whether the class sets, clears or shortens the list somewhere else."""
    for attribute in file.nodes_in(owner, ast.Attribute):
        if attribute.attr != name:
            continue
        outer = file.parent(attribute)
        if isinstance(attribute.ctx, (ast.Store, ast.Del)):
            if file.statement(attribute) is not first:
                return True
            continue
        shortened = isinstance(outer, ast.Attribute) and outer.attr in ("clear", "pop", "remove", "popleft")
        overwritten = isinstance(outer, ast.Subscript) and isinstance(outer.ctx, (ast.Store, ast.Del))
        if shortened or overwritten:
            return True
    return False


def _start(
    file: FileContext, owner: ast.ClassDef, name: str, is_start: Callable[[ast.expr | None], bool]
) -> ast.AST | None:
    """Where the class sets an attribute to a start of this kind, if that is all it is ever set to."""
    found: ast.AST | None = None
    settings: list[ast.Assign | ast.AnnAssign] = [*file.nodes_in(owner, ast.Assign)]
    settings.extend(file.nodes_in(owner, ast.AnnAssign))
    for statement in settings:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if not any(_names(target, name, statement, owner, file) for target in targets):
            continue
        if isinstance(statement, ast.Assign) and _counted(statement) is not None:
            continue
        if not is_start(statement.value):
            return None
        found = found or statement
    return found


def _names(target: ast.expr, name: str, statement: ast.stmt, owner: ast.ClassDef, file: FileContext) -> bool:
    if isinstance(target, ast.Attribute):
        return target.attr == name and isinstance(target.value, ast.Name) and target.value.id == "self"
    return isinstance(target, ast.Name) and target.id == name and file.parent(statement) is owner


def _is_read(file: FileContext, function: FunctionNode, name: str, change: ast.stmt | None) -> bool:
    """Whether the attribute is read in the function, other than to count it."""
    for attribute in file.nodes_in(function, ast.Attribute):
        if attribute.attr == name and isinstance(attribute.ctx, ast.Load) and file.statement(attribute) is not change:
            return isinstance(attribute.value, ast.Name) and attribute.value.id == "self"
    return False
