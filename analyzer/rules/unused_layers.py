"""Layers whose parameters no gradient can reach: never called, or called for a result that goes nowhere.

Looks at one class; a layer that other code reaches through the object is left alone where its name shows up. This
module must not follow values beyond one method.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, Severity
from analyzer.objects import is_false, keyword, maker, self_assignments
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.syntax import FunctionNode, dotted_name

_HEAD = "import torch\nimport torch.nn as nn\n\n\n"
_NET = (
    "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.fc = nn.Linear(4, 4)\n"
    "        self.norm = nn.LayerNorm(4)\n\n    def forward(self, x):\n"
)
_MODULE_BASES = frozenset({"nn.Module", "torch.nn.Module", "Module"})
_TRAINED = frozenset(
    {
        *("Linear", "Bilinear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"),
        *(
            "BatchNorm1d",
            "BatchNorm2d",
            "BatchNorm3d",
            "LayerNorm",
            "GroupNorm",
            "RMSNorm",
            "Embedding",
            "EmbeddingBag",
        ),
        *("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell", "MultiheadAttention", "TransformerEncoderLayer"),
        *("TransformerDecoderLayer", "PReLU", "Parameter"),
    }
)
# Whoever walks over the children of a module reaches all of them, under no name.
_WALKS = re.compile(
    r"\b(getattr|setattr|vars)\(\s*self\b|self\.(children|named_children|modules|named_modules|_modules|__dict__|"
    r"get_submodule|_parameters|apply|parameters)\b"
)
# What the class itself says that it leaves out, up to the end of the sentence.
_LEFT_OUT = re.compile(
    r"\b(skip(s|ping|ped)|without using|(does|do)( not|n't) use|leav(es|ing) out|omit(s|ting)?)\b[^.;]*", re.I
)
_SHORTEST_WORD = 4
_KEPT = re.compile(r"compat|legacy|unused|not used|checkpoint|backward|deprecat|pretrain|load|noqa", re.IGNORECASE)


def _modules(file: FileContext) -> Iterator[ast.ClassDef]:
    """Classes that derive from `nn.Module` alone, define `forward`, and have no subclass in the file."""
    extended = {dotted_name(base) for node in file.nodes(ast.ClassDef) for base in node.bases}
    for node in file.nodes(ast.ClassDef):
        bases = [dotted_name(base) or "" for base in node.bases]
        forward = _method(node, "forward")
        alone = len(bases) == 1 and bases[0] in _MODULE_BASES and node.name not in extended
        if alone and forward is not None and not isinstance(forward.body[-1], ast.Raise):
            yield node


def _method(node: ast.ClassDef, name: str) -> FunctionNode | None:
    return next(
        (item for item in node.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) and item.name == name),
        None,
    )


class UnusedLayer(Rule):
    """A layer with parameters that is built in `__init__` and used nowhere."""

    id = "GP719"
    name = "unused-layer"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("finding_search",)
    triggers = ("nn.",)
    documentation = Documentation(
        what_it_does=(
            "Finds layers and parameters that the `__init__` of an `nn.Module` creates and that no method of the class "
            "ever reads."
        ),
        why_is_this_bad=(
            "Its parameters never get a gradient. They cost memory, weight decay still shrinks them, "
            "`DistributedDataParallel` waits for them and raises, and mostly the layer was meant to be called."
        ),
        faulty_example=_HEAD + _NET + "        return torch.relu(self.fc(x))\n",
        right_example=_HEAD + _NET + "        return torch.relu(self.norm(self.fc(x)))\n",
        fix_safety="No automatic fix: to call it or to take it away is the author's choice.",
    )
    valid = (
        _HEAD + _NET + "        return self.norm(self.fc(x))\n",
        # reached by name
        _HEAD
        + _NET
        + "        for name in ('fc', 'norm'):\n            x = getattr(self, name)(x)\n        return x\n",
        _HEAD + _NET + "        for layer in self.children():\n            x = layer(x)\n        return x\n",
        # another object of the file reaches for it
        _HEAD + _NET + "        return self.fc(x)\n\n\ndef finish(net, x):\n    return net.norm(net(x))\n",
        # a subclass may use it; a base class may as well
        _HEAD + _NET + "        return self.fc(x)\n\n\nclass Other(Net):\n    def forward(self, x):\n"
        "        return self.fc(x)\n",
        _HEAD + "from blocks import Base\n" + _NET.replace("nn.Module", "Base") + "        return self.fc(x)\n",
        # kept so that old weights load
        _HEAD
        + _NET.replace("LayerNorm(4)", "LayerNorm(4)  # unused, kept for old checkpoints")
        + "        return self.fc(x)\n",
        # nothing to train
        _HEAD + _NET.replace("LayerNorm(4)", "Identity()") + "        return self.fc(x)\n",
        _HEAD + _NET.replace("LayerNorm(4)", "LayerNorm(4, elementwise_affine=False)") + "        return self.fc(x)\n",
        # tied to another weight by its name
        _HEAD + "class Net(nn.Module):\n    _tied = {'head.bias': 'bias'}\n\n    def __init__(self):\n"
        "        super().__init__()\n        self.head = nn.Linear(4, 4)\n"
        "        self.bias = nn.Parameter(torch.zeros(4))\n\n"
        "    def forward(self, x):\n        return self.head(x)\n",
        # handed on in __init__
        _HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.fc = nn.Linear(4, 4)\n        self.body = nn.Sequential(self.fc, nn.ReLU())\n\n"
        "    def forward(self, x):\n        return self.body(x)\n",
        # the one that is used is chosen
        _HEAD + "class Net(nn.Module):\n    def __init__(self, flat):\n        super().__init__()\n"
        "        self.fc = nn.Linear(4, 4)\n        self.weight = nn.Parameter(torch.ones(4))\n\n"
        "    def forward(self, x):\n        return self.fc(x) * self.weight\n",
        # a holder of parameters, which is not called
        _HEAD + "class Held(nn.Module):\n    def __init__(self, data):\n        super().__init__()\n"
        "        self.data = nn.Parameter(data)\n\n    def forward(self):\n        raise NotImplementedError\n",
        # no forward of its own: a container
        _HEAD + "class Parts(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.fc = nn.Linear(4, 4)\n",
    )
    invalid = (
        Invalid(_HEAD + _NET + "        return torch.relu(self.fc(x))\n", (9,)),
        Invalid(
            _HEAD
            + _NET.replace("LayerNorm(4)", "Parameter(torch.ones(4))")
            + "        return torch.relu(self.fc(x))\n",
            (9,),
        ),
        Invalid(
            _HEAD
            + _NET.replace("LayerNorm(4)", "Sequential(nn.Linear(4, 4), nn.ReLU())")
            + "        return torch.relu(self.fc(x))\n",
            (9,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        read: dict[str, int] | None = None
        for node in _modules(file):
            init = _method(node, "__init__")
            if init is None:
                continue
            trained = list(_trained_attributes(file, init))
            if not trained:
                continue
            if read is None:
                read = _read_attributes(file)
            unused = [(name, value) for name, value in trained if name not in read]
            if not unused or _WALKS.search(file.source(node)):
                continue
            for name, value in unused:
                if not _is_kept_on_purpose(file, value) and not _is_named_in_text(file, name):
                    yield Hit(
                        value,
                        f"`self.{name}` is built here and never used: its parameters get no gradient. Call it in "
                        f"`forward`, or take it away.",
                    )


def _trained_attributes(file: FileContext, init: FunctionNode) -> Iterator[tuple[str, ast.Call]]:
    """The attributes that `__init__` assigns layers with parameters to, each assigned once and under no condition."""
    assigned: dict[str, list[ast.Assign]] = {}
    for assignment in file.nodes_in(init, ast.Assign):
        for target in assignment.targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                assigned.setdefault(target.attr, []).append(assignment)
    for name, assignments in assigned.items():
        value = assignments[0].value
        plain = len(assignments) == 1 and len(assignments[0].targets) == 1 and file.parent(assignments[0]) is init
        if plain and isinstance(value, ast.Call) and is_trained(file, value):
            yield name, value


def is_trained(file: FileContext, value: ast.Call) -> bool:
    """Whether a call makes a torch layer (or a chain with one) that has parameters to train."""
    qualified = file.qualified_name(value.func) or ""
    if not qualified.startswith("torch.nn."):
        return isinstance(value.func, ast.Name) and _is_trained_class(file, value.func.id)
    short = qualified.rpartition(".")[2]
    if short == "Sequential":
        return any(isinstance(item, ast.Call) and is_trained(file, item) for item in value.args)
    if short == "ModuleList" and len(value.args) == 1:
        return any(is_trained(file, item) for item in _listed(value.args[0]))
    frozen = any(is_false(keyword(value, name)) for name in ("affine", "elementwise_affine", "requires_grad"))
    return short in _TRAINED and not frozen


_MAKES_PARAMETERS = re.compile(r"\bnn\.(Linear|Conv|Parameter\(|Embedding|LSTM|GRU|LayerNorm|BatchNorm|GroupNorm)")


def _is_trained_class(file: FileContext, name: str) -> bool:
    """Whether a name is a module class of the file that makes parameters itself."""
    return name in file.once(_trained_classes)


def _trained_classes(file: FileContext) -> frozenset[str]:
    found: dict[str, list[ast.ClassDef]] = {}
    for node in file.nodes(ast.ClassDef):
        found.setdefault(node.name, []).append(node)
    return frozenset(
        name
        for name, nodes in found.items()
        if len(nodes) == 1
        and any((dotted_name(base) or "") in _MODULE_BASES for base in nodes[0].bases)
        and _MAKES_PARAMETERS.search(file.source(nodes[0])) is not None
    )


def _listed(layers: ast.expr) -> Iterator[ast.Call]:
    """The calls that make the entries of a list or of a comprehension."""
    entries = [layers.elt] if isinstance(layers, (ast.ListComp, ast.GeneratorExp)) else getattr(layers, "elts", [])
    yield from (entry for entry in entries if isinstance(entry, ast.Call))


def _read_attributes(file: FileContext) -> dict[str, int]:
    """How often each attribute name is read anywhere in the file, on whatever object."""
    counts: dict[str, int] = {}
    for attribute in file.nodes(ast.Attribute):
        if isinstance(attribute.ctx, ast.Load):
            counts[attribute.attr] = counts.get(attribute.attr, 0) + 1
    return counts


def _is_named_in_text(file: FileContext, name: str) -> bool:
    """Whether a string names the attribute: weights tied by name, as in transformers, are used without being read."""
    return re.search(rf"""[.'"]{re.escape(name)}['"]""", file.text) is not None


def _is_kept_on_purpose(file: FileContext, value: ast.expr) -> bool:
    lines = (file.line(value.lineno - 1), file.line(value.lineno), file.line(value.end_lineno or value.lineno))
    if any("#" in line and _KEPT.search(line.partition("#")[2]) for line in lines):
        return True
    owner = file.enclosing_class(value)
    left_out = _LEFT_OUT.search(ast.get_docstring(owner, clean=False) or "") if owner is not None else None
    if left_out is None:
        return False
    target = getattr(file.statement(value), "targets", [None])[0]
    words = target.attr.lower().split("_") if isinstance(target, ast.Attribute) else []
    told = left_out.group().lower()
    return any(len(word) >= _SHORTEST_WORD and word in told for word in words)


class LayerResultUnused(Rule):
    """A layer that `forward` runs for a result which never reaches the output."""

    id = "GP724"
    name = "layer-result-unused"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search",)
    triggers = ("forward",)
    documentation = Documentation(
        what_it_does=(
            "Finds calls of trained layers in `forward` whose result is dropped or overwritten before anything reads "
            "it, and lists of layers that run to their end although only the state after one of them is returned."
        ),
        why_is_this_bad=(
            "The layer is computed for nothing, and its parameters never get a gradient: "
            "`DistributedDataParallel` raises, and a layer that was meant to shape the output does not."
        ),
        faulty_example=_HEAD
        + _NET
        + "        h = self.fc(x)\n        y = self.norm(h)\n        return torch.relu(h)\n",
        right_example=_HEAD + _NET + "        h = self.fc(x)\n        y = self.norm(h)\n        return torch.relu(y)\n",
        fix_safety="No automatic fix: which of the two results was meant is not in the code.",
    )
    valid = (
        _HEAD + _NET + "        h = self.fc(x)\n        y = self.norm(h)\n        return y\n",
        _HEAD
        + _NET
        + "        y = self.fc(x)\n        if self.training:\n            y = self.norm(y)\n        return y\n",
        _HEAD
        + _NET
        + "        y = self.fc(x)\n        for _ in range(3):\n            y = self.norm(y)\n        return y\n",
        # overwritten by something computed from it
        _HEAD + _NET + "        x = self.fc(x)\n        x = self.norm(x)\n        return x\n",
        _HEAD + _NET + "        y = self.norm(self.fc(x))\n        y += x\n        return y\n",
        # a part of the result
        _HEAD + _NET + "        y, _ = self.norm(self.fc(x)), 1\n        return y\n",
        # read in a nested function
        _HEAD + _NET + "        y = self.norm(self.fc(x))\n        return lambda: y\n",
        # its gradient is wanted from elsewhere
        _HEAD + _NET + "        y = self.norm(self.fc(x))\n        del y\n        return self.norm(x)\n",
        _HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.heads = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])\n\n"
        "    def forward(self, x, i):\n        outs = [head(x) for head in self.heads]\n        return outs[i]\n",
        # all states are read
        _HEAD + "class Net(nn.Module):\n    def __init__(self, depth, tap):\n        super().__init__()\n"
        "        self.tap = tap\n        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(depth)])\n\n"
        "    def forward(self, x):\n        states = []\n        for layer in self.layers:\n            x = layer(x)\n"
        "            states.append(x)\n        return states[self.tap] + x\n",
        _HEAD + "class Net(nn.Module):\n    def __init__(self, depth, tap):\n        super().__init__()\n"
        "        self.tap = tap\n        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(depth)])\n\n"
        "    def forward(self, x):\n        states = [x]\n        for layer in self.layers:\n"
        "            states.append(layer(states[-1]))\n        return states[-1]\n",
        # no more layers than are needed
        _HEAD + "class Net(nn.Module):\n    def __init__(self, depth, tap):\n        super().__init__()\n"
        "        self.tap = tap\n        kept = min(depth, tap)\n"
        "        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(kept)])\n\n"
        "    def forward(self, x):\n        states = [x]\n        for layer in self.layers:\n"
        "            states.append(layer(states[-1]))\n        return states[self.tap]\n",
        # left early
        _HEAD + "class Net(nn.Module):\n    def __init__(self, depth, tap):\n        super().__init__()\n"
        "        self.tap = tap\n        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(depth)])\n\n"
        "    def forward(self, x):\n        states = [x]\n        for layer in self.layers:\n"
        "            if len(states) > self.tap:\n                break\n"
        "            states.append(layer(states[-1]))\n        return states[self.tap]\n",
        # which state is returned changes from call to call
        _HEAD + "class Net(nn.Module):\n    def __init__(self, depth):\n        super().__init__()\n"
        "        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(depth)])\n\n"
        "    def forward(self, x, tap):\n        states = [x]\n        for layer in self.layers:\n"
        "            states.append(layer(states[-1]))\n        return states[tap]\n",
    )
    invalid = (
        Invalid(
            _HEAD + _NET + "        h = self.fc(x)\n        y = self.norm(h)\n        return torch.relu(h)\n", (13,)
        ),
        Invalid(_HEAD + _NET + "        self.norm(x)\n        return self.fc(x)\n", (12,)),
        Invalid(
            _HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.heads = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])\n\n"
            "    def forward(self, x):\n        outs = [head(x) for head in self.heads]\n        return outs[-1]\n",
            (11,),
        ),
        Invalid(
            _HEAD + _NET + "        y = self.fc(x)\n        y = self.norm(x)\n        return torch.relu(y)\n", (12,)
        ),
        Invalid(
            _HEAD + "class Net(nn.Module):\n    def __init__(self, depth=4, tap=2):\n        super().__init__()\n"
            "        self.tap = tap\n        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(depth)])\n\n"
            "    def forward(self, x):\n        states = []\n        for layer in self.layers:\n"
            "            x = layer(x)\n            states.append(x)\n        return states[self.tap]\n",
            (9,),
        ),
        Invalid(
            _HEAD + "class Net(nn.Module):\n    def __init__(self, depth=4):\n        super().__init__()\n"
            "        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(depth))\n\n"
            "    def forward(self, x):\n        states = []\n        for layer in self.layers:\n"
            "            x = layer(x)\n            states.append(x)\n        return states[-2]\n",
            (8,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for forward in file.functions_by_name.get("forward", ()):
            owner = file.parent(forward)
            if isinstance(owner, ast.ClassDef):
                yield from _dropped(file, owner, forward)
                yield from _past_the_tap(file, owner, forward)
                yield from _side_by_side(file, owner, forward)


def _dropped(file: FileContext, owner: ast.ClassDef, forward: FunctionNode) -> Iterator[Hit]:
    statements: list[ast.Expr | ast.Assign] = [*file.nodes_in(forward, ast.Expr), *file.nodes_in(forward, ast.Assign)]
    for statement in statements:
        call = statement.value
        if not isinstance(call, ast.Call) or not _is_own_layer(file, owner, call):
            continue
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]
            if len(statement.targets) != 1 or not isinstance(target, ast.Name) or not _is_dead(file, target, forward):
                continue
        if _other_calls(file, forward, call):
            continue  # another call of the layer trains it
        yield Hit(
            call,
            f"Nothing reads what `{file.source(call.func)}` computes here: it never reaches the output, and its "
            f"parameters get no gradient.",
        )


def _is_own_layer(file: FileContext, owner: ast.ClassDef, call: ast.Call) -> bool:
    """Whether a call runs a layer with parameters that the class keeps in `self`."""
    func = call.func
    if not (isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "self"):
        return False
    if any(keyword(call, name) is not None for name in ("out",)):
        return False
    values = self_assignments(file, owner).get(func.attr, [])
    return len(values) == 1 and isinstance(values[0], ast.Call) and is_trained(file, values[0])


def _is_dead(file: FileContext, target: ast.Name, forward: FunctionNode) -> bool:
    """Whether no use of the name can see the value assigned at `target`."""
    if target.id == "_" or target.id.startswith("_unused"):
        return False
    statement = file.statement(target)
    for name in file.names_in(forward, target.id):
        if isinstance(name.ctx, ast.Store) and not _is_read_too(file, name):
            continue
        if isinstance(name.ctx, ast.Del) or file.enclosing_function(name) is not forward:
            return False
        if any(isinstance(outer, (ast.Lambda, ast.Try)) for outer in file.ancestors(name)):
            return False
        if any(binding.statement is statement for binding in file.values.definitions(name)):
            return False
    return "locals()" not in file.source(forward)


def _is_read_too(file: FileContext, stored: ast.Name) -> bool:
    """Whether a name is the target of `x += y`, which reads it before."""
    return isinstance(file.parent(stored), ast.AugAssign)


def _other_calls(file: FileContext, forward: FunctionNode, call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    owner = file.parent(forward)
    if not isinstance(owner, ast.ClassDef):
        return True
    reads = [
        item for item in file.nodes_in(owner, ast.Attribute) if item.attr == name and isinstance(item.ctx, ast.Load)
    ]
    return len(reads) > 1


def _side_by_side(file: FileContext, owner: ast.ClassDef, forward: FunctionNode) -> Iterator[Hit]:
    """`outs = [head(x) for head in self.heads]` with nothing but `outs[-1]` read afterwards."""
    for statement in file.nodes_in(forward, ast.Assign):
        found, target = statement.value, statement.targets[0]
        if not isinstance(found, ast.ListComp) or len(found.generators) != 1 or not isinstance(target, ast.Name):
            continue
        layers = found.generators[0].iter
        name = layers.attr if isinstance(layers, ast.Attribute) and file.source(layers.value) == "self" else ""
        made = self_assignments(file, owner).get(name, [])
        if len(made) != 1 or not isinstance(made[0], ast.Call) or not is_trained(file, made[0]):
            continue
        uses = [n for n in file.nodes_in(forward, ast.Name) if n.id == target.id and isinstance(n.ctx, ast.Load)]
        tap = file.parent(uses[0]) if len(uses) == 1 else None
        if isinstance(tap, ast.Subscript) and tap.value is uses[0] and _is_one_entry(tap.slice):
            yield Hit(
                found,
                f"All of `self.{name}` run, but only `{file.source(tap)}` is used: the others never reach the output, "
                f"and get no gradient.",
                related=((tap, "only this result is used"),),
            )


def _is_one_entry(index: ast.expr) -> bool:
    number = index.operand if isinstance(index, ast.UnaryOp) else index
    return _is_fixed(index) or (isinstance(number, ast.Constant) and isinstance(number.value, int))


def _past_the_tap(file: FileContext, owner: ast.ClassDef, forward: FunctionNode) -> Iterator[Hit]:
    """`for layer in self.layers: states.append(...)` with nothing but `states[self.tap]` read afterwards."""
    for loop in file.nodes_in(forward, ast.For):
        layers = loop.iter
        if not (isinstance(layers, ast.Attribute) and isinstance(layers.value, ast.Name) and layers.value.id == "self"):
            continue
        made = self_assignments(file, owner).get(layers.attr, [])
        if len(made) != 1 or not isinstance(made[0], ast.Call) or _leaves(loop):
            continue
        for states in _collected(loop):
            tap = _only_read(file, forward, loop, states)
            count = _count(file, made[0])
            if tap is not None and count is not None and not _depends(file, count, tap):
                yield Hit(
                    made[0],
                    f"All of `self.{layers.attr}` run, but only `{states}[{file.source(tap)}]` is used: the layers "
                    f"after it never reach the output, and get no gradient. Build no more than are used.",
                    related=((tap, "only this state is used"),),
                )


def _leaves(loop: ast.For) -> bool:
    return any(isinstance(node, (ast.Break, ast.Return, ast.Continue, ast.Yield)) for node in ast.walk(loop))


def _collected(loop: ast.For) -> Iterator[str]:
    for statement in loop.body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        method = call.func if isinstance(call, ast.Call) else None
        if isinstance(method, ast.Attribute) and method.attr == "append" and isinstance(method.value, ast.Name):
            yield method.value.id


def _only_read(file: FileContext, forward: FunctionNode, loop: ast.For, states: str) -> ast.expr | None:
    """The one index under which a list is read after a loop, if it is fixed; None when anything else is read."""
    end = loop.end_lineno or loop.lineno
    carried = {n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    index: ast.expr | None = None
    for name in file.nodes_in(forward, ast.Name):
        if name.lineno <= end or isinstance(name.ctx, ast.Store):
            continue
        if name.id in carried:
            return None  # the last state is read as well
        if name.id == states:
            parent = file.parent(name)
            if index is not None or not isinstance(parent, ast.Subscript) or not _is_fixed(parent.slice):
                return None
            index = parent.slice
    return index


def _is_fixed(index: ast.expr) -> bool:
    if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub) and isinstance(index.operand, ast.Constant):
        return isinstance(index.operand.value, int) and index.operand.value > 1
    return isinstance(index, ast.Attribute) and (dotted_name(index) or "").startswith("self.")


def _count(file: FileContext, made: ast.Call) -> ast.expr | None:
    """The number of layers in `ModuleList([... for _ in range(n)])`."""
    if not (file.qualified_name(made.func) or "").endswith("ModuleList") or not made.args:
        return None
    layers = made.args[0]
    if not isinstance(layers, (ast.ListComp, ast.GeneratorExp)):
        return None
    source = layers.generators[0].iter
    is_range = isinstance(source, ast.Call) and isinstance(source.func, ast.Name) and source.func.id == "range"
    return source.args[-1] if isinstance(source, ast.Call) and is_range and source.args else None


def _depends(file: FileContext, count: ast.expr, tap: ast.expr) -> bool:
    """Whether the number of layers is computed from the index that is read."""
    name = tap.attr if isinstance(tap, ast.Attribute) else None
    definition = file.values.single_definition(count) if isinstance(count, ast.Name) else None
    text = file.source(count) + " " + (file.source(definition) if definition is not None else "")
    made = maker(file, tap) if isinstance(tap, ast.Attribute) else None
    return name is not None and (re.search(rf"\b{re.escape(name)}\b", text) is not None or made is not None)
