"""Losses between a column and a row: [N, 1] against [N] becomes [N, N].

Both shapes need evidence in the same function. This module must not know training loops.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from enum import Enum

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.objects import argument, is_true, keyword, made_by, maker
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import terminal_name
from analyzer.values.operations import Operation

_HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
_FUNCTIONS = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"})
_LAYERS = frozenset({"torch.nn.MSELoss", "torch.nn.L1Loss", "torch.nn.SmoothL1Loss", "torch.nn.HuberLoss"})
_MAX_DEPTH = 12


class _Shape(Enum):
    COLUMN = "[N, 1]"
    FLAT = "[N]"


class LossShapesBroadcast(Rule):
    """A loss between a prediction of [N, 1] and a target of [N], or the other way round."""

    id = "GP713"
    name = "loss-shapes-broadcast"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search", "training_step")
    fix = FixSafety.UNSAFE
    triggers = (
        "mse_loss",
        "l1_loss",
        "huber_loss",
        "MSELoss",
        "L1Loss",
        "HuberLoss",
        "** 2",
        "**2",
        "pow(2)",
        "square()",
    )
    documentation = Documentation(
        what_it_does=(
            "Finds losses and squared differences between two tensors of which one is certainly a column [N, 1] (the "
            "output of `nn.Linear(…, 1)`, `unsqueeze(1)`, `gather` with a column of indices) and the other certainly "
            "flat [N] (`squeeze(-1)`, `view(-1)`, `max(1)[0]`, `x[:, 0]`)."
        ),
        why_is_this_bad=(
            "The two are broadcast to [N, N], so every prediction is compared with every target: the loss falls when "
            "all predictions approach the mean of the targets. The functions of torch warn once; a difference that is "
            "written out does not."
        ),
        faulty_example=_HEAD + "def loss(x, y, layer):\n    head = nn.Linear(4, 1)\n    out = head(x)\n"
        "    return F.mse_loss(out, y.view(-1))\n",
        right_example=_HEAD + "def loss(x, y, layer):\n    head = nn.Linear(4, 1)\n    out = head(x).squeeze(-1)\n"
        "    return F.mse_loss(out, y.view(-1))\n",
        fix_safety="Unsafe: the flat tensor becomes a column, and the loss becomes the one that was meant.",
    )
    valid = (
        documentation.right_example,
        _HEAD + "def loss(x, y, head):\n    return F.mse_loss(head(x), y.view(-1))\n",
        _HEAD + "def loss(x, y):\n    head = nn.Linear(4, 1)\n    return F.mse_loss(head(x), y.view(-1, 1))\n",
        _HEAD + "def loss(x, y):\n    head = nn.Linear(4, 1)\n    out = head(x)\n"
        "    return F.mse_loss(out, y.view(-1).view_as(out))\n",
        _HEAD + "def loss(q, a, r, nxt):\n    now = q.gather(1, a.unsqueeze(1)).squeeze(1)\n"
        "    return F.mse_loss(now, r + nxt.max(1)[0])\n",
        _HEAD + "def loss(q, a, r, nxt):\n    now = q.gather(1, a.unsqueeze(1))\n"
        "    return F.mse_loss(now, r + nxt.max(1, keepdim=True)[0])\n",
        _HEAD + "def loss(q, a, r, nxt):\n    now = q.gather(1, a.unsqueeze(1))\n"
        "    return F.mse_loss(now, (r + nxt.max(1)[0]).unsqueeze(1))\n",
        # all pairs are wanted
        _HEAD + "def distances(x):\n    a, b = x.view(-1, 1), x.view(-1)\n    return ((a - b) ** 2).sqrt()\n",
        _HEAD + "def distances(x):\n    a = x.view(-1)\n    return (a.unsqueeze(1) - a[None, :]) ** 2\n",
        # a column of each row
        _HEAD + "def loss(x, y):\n    head = nn.Linear(4, 2)\n    return F.mse_loss(head(x), y.view(-1))\n",
        _HEAD + "def loss(x, y):\n    return F.mse_loss(x[:, 0], y.squeeze(-1))\n",
        # the batch is one long row
        _HEAD + "def loss(x, y):\n    head = nn.Linear(4, 1)\n    return F.mse_loss(head(x).view(-1), y.view(-1))\n",
    )
    invalid = (
        Invalid(documentation.faulty_example, (9,)),
        Invalid(
            _HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.head = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))\n"
            "        self.loss = nn.MSELoss()\n\n    def forward(self, x, y):\n"
            "        return self.loss(self.head(x), y.squeeze(-1))\n",
            (13,),
        ),
        Invalid(
            _HEAD + "def loss(q, a, r, nxt, gamma):\n    now = q.gather(1, a.unsqueeze(1))\n"
            "    best = nxt.max(1)[0].detach()\n    target = r + gamma * best\n"
            "    return F.smooth_l1_loss(now, target)\n",
            (10,),
        ),
        Invalid(
            _HEAD + "def loss(x, y):\n    head = nn.Linear(4, 1)\n    error = head(x) - y.flatten()\n"
            "    return error.pow(2).mean()\n",
            (8,),
        ),
        Invalid(
            _HEAD + "def loss(x, y):\n    head = nn.Linear(4, 1)\n    return ((head(x) - y[:, 0]) ** 2).mean()\n", (8,)
        ),
        Invalid(
            _HEAD + "def loss(x, y):\n    head = nn.Linear(4, 1)\n    out = head(x).squeeze(-1)\n"
            "    return F.l1_loss(out, y.unsqueeze(1))\n",
            (9,),
        ),
        Invalid(
            _HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.head = nn.Linear(4, 1)\n\n    def forward(self, x):\n        return self.head(x)\n\n\n"
            "def train(y, x):\n    net = Net()\n    return F.mse_loss(net(x), y.view(-1))\n",
            (17,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for node, left, right in _compared(file):
            shapes = (_shape(file, left, 0), _shape(file, right, 0))
            if None in shapes or shapes[0] is shapes[1]:
                continue
            flat, column = (left, right) if shapes[0] is _Shape.FLAT else (right, left)
            yield Hit(
                node,
                f"`{file.source(column)}` is a column [N, 1] and `{file.source(flat)}` is flat [N]: they broadcast to "
                f"[N, N], and everything is compared with everything. Give both one shape.",
                related=((column, "a column [N, 1]"), (flat, "flat [N]")),
                fix=Rewrite(FixSafety.UNSAFE, (Replacement(flat, f"{file.operand_source(flat)}.unsqueeze(-1)"),)),
            )


def _compared(file: FileContext) -> Iterator[tuple[ast.expr, ast.expr, ast.expr]]:
    """(the node, one side, the other side) of every loss and every squared difference that is averaged."""
    for call in file.calls(*_FUNCTIONS):
        if (file.qualified_name(call.func) or "").startswith("torch.nn.functional.") and len(call.args) >= 2:
            yield call, call.args[0], call.args[1]
    for made in file.calls(*(name.rpartition(".")[2] for name in _LAYERS)):
        yield from _of_criterion(file, made)
    for difference in file.nodes(ast.BinOp):
        if isinstance(difference.op, ast.Sub) and _is_averaged_square(file, difference):
            if _Shape.COLUMN not in (_made(file, difference.left), _made(file, difference.right)):
                continue
            yield difference, difference.left, difference.right


def _of_criterion(file: FileContext, made: ast.Call) -> Iterator[tuple[ast.expr, ast.expr, ast.expr]]:
    statement = file.statement(made)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return
    name = terminal_name(statement.targets[0])
    for call in file.calls(name) if name is not None else []:
        if len(call.args) == 2 and made_by(file, call.func) in _LAYERS:
            yield call, call.args[0], call.args[1]


def _is_averaged_square(file: FileContext, difference: ast.BinOp) -> bool:
    """Whether a difference is squared or made positive, and the mean or sum of all is taken."""
    node: ast.AST = difference
    statement = file.statement(difference)
    if isinstance(statement, ast.Assign) and statement.value is difference:
        target, function = statement.targets[0], file.enclosing_function(difference)
        if not isinstance(target, ast.Name) or function is None:
            return False
        uses = [n for n in file.nodes_in(function, ast.Name) if n.id == target.id and isinstance(n.ctx, ast.Load)]
        if len(uses) != 1:
            return False
        node = uses[0]
    squared = False
    for outer in file.ancestors(node):
        if isinstance(outer, ast.stmt):
            return False
        if isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Pow):
            squared = True
        elif isinstance(outer, ast.Call):
            name = terminal_name(outer.func)
            squared = squared or name in ("pow", "square", "abs")
            if name in ("mean", "sum"):
                return (
                    squared and not outer.args[1:] and not (isinstance(outer.func, ast.Attribute) and _has_axis(outer))
                )
    return False


def _has_axis(call: ast.Call) -> bool:
    is_function = isinstance(call.func, ast.Attribute) and terminal_name(call.func.value) == "torch"
    return (bool(call.args) and not is_function) or keyword(call, "dim", "axis") is not None


def _made(file: FileContext, expression: ast.expr) -> _Shape | None:
    """The shape of what a layer made: of differences, `x[:, None] - y` means all pairs and is left alone."""
    source = file.values.single_definition(expression) if isinstance(expression, ast.Name) else expression
    if isinstance(source, ast.Call) and not (isinstance(source.func, ast.Attribute) and source.func.attr in _RESHAPES):
        return _shape(file, source, 0)
    return None


# --- shapes ----------------------------------------------------------------------------------------------------------

_RESHAPES = frozenset({"unsqueeze", "view", "reshape", "expand"})
_KEEP = frozenset(
    {
        *(
            "detach",
            "float",
            "to",
            "clone",
            "sigmoid",
            "tanh",
            "relu",
            "exp",
            "clamp",
            "double",
            "contiguous",
            "mul",
            "add",
        ),
        *("sub", "div", "abs", "cuda", "cpu", "type_as", "log", "sqrt", "data"),
    }
)
_REDUCTIONS = frozenset({"max", "min", "sum", "mean", "amax", "amin", "norm", "prod", "argmax", "argmin"})
_ACTIVATIONS = ("ReLU", "Sigmoid", "Tanh", "Softplus", "Dropout", "Identity", "GELU", "SiLU", "LeakyReLU", "ELU")


def _shape(file: FileContext, expression: ast.expr, depth: int) -> _Shape | None:
    """Whether an expression certainly is a column or certainly flat."""
    depth += 1
    if depth > _MAX_DEPTH:
        return None
    if isinstance(expression, ast.Name):
        source = file.values.single_definition(expression)
        return _shape(file, source, depth) if source is not None else None
    if isinstance(expression, ast.BinOp):
        return _arithmetic(file, expression, depth)
    if isinstance(expression, ast.Subscript):
        return _picked(file, expression, depth)
    if isinstance(expression, ast.Attribute) and expression.attr in ("values", "indices", "data"):
        return _shape(file, expression.value, depth)
    return _called(file, expression, depth) if isinstance(expression, ast.Call) else None


def _arithmetic(file: FileContext, expression: ast.BinOp, depth: int) -> _Shape | None:
    """The shape of a sum: that of the side that is known, if the other is a number or an argument of the function."""
    left, right = _shape(file, expression.left, depth), _shape(file, expression.right, depth)
    if left is not None and right is not None:
        return left if left is right else None
    known, other = (left, expression.right) if left is not None else (right, expression.left)
    if known is None:
        return None
    plain = file.values.value(other).is_number or isinstance(other, (ast.Name, ast.Attribute, ast.Constant))
    product = isinstance(other, ast.BinOp) and _arithmetic_is_plain(other)
    return known if plain or product else None


def _arithmetic_is_plain(expression: ast.BinOp) -> bool:
    sides = (expression.left, expression.right)
    return all(isinstance(side, (ast.Name, ast.Attribute, ast.Constant)) for side in sides)


def _picked(file: FileContext, expression: ast.Subscript, depth: int) -> _Shape | None:
    """`x[:, 0]`, `x[:, :1]`, `x[:, None]`, and `[0]` of `x.max(1)`."""
    index = expression.slice
    if isinstance(index, ast.Constant) and index.value in (0, 1) and isinstance(expression.value, ast.Call):
        name = terminal_name(expression.value.func)
        return _shape(file, expression.value, depth) if name in ("max", "min", "sort", "topk") else None
    if not isinstance(index, ast.Tuple) or len(index.elts) != 2 or not isinstance(index.elts[0], ast.Slice):
        return None
    second = index.elts[1]
    if isinstance(second, ast.Slice):
        first_only = second.lower is None and isinstance(second.upper, ast.Constant) and second.upper.value == 1
        return _Shape.COLUMN if first_only else None
    if isinstance(second, ast.Constant) and second.value is None:
        return _Shape.COLUMN
    number = second.operand if isinstance(second, ast.UnaryOp) else second
    return _Shape.FLAT if isinstance(number, ast.Constant) and isinstance(number.value, int) else None


def _called(file: FileContext, call: ast.Call, depth: int) -> _Shape | None:
    layer = _layer_shape(file, call)
    if layer is not None:
        return layer
    operation = file.values.operation(call)
    if operation is None or operation.operand is None:
        return None
    name, arguments = operation.name, list(operation.arguments)
    if name in ("view", "reshape"):
        return _viewed(file, arguments)
    if name in ("squeeze", "unsqueeze"):
        return _stretched(file, name, arguments, call)
    if name in _REDUCTIONS:
        return _reduced(file, arguments, call)
    return _gathered(file, operation, depth) if name == "gather" else _kept(file, operation, depth)


def _kept(file: FileContext, operation: Operation, depth: int) -> _Shape | None:
    if operation.name in ("flatten", "ravel") and not operation.arguments and not operation.call.keywords:
        return _Shape.FLAT
    kept = operation.name in _KEEP and operation.operand is not None
    return _shape(file, operation.operand, depth) if kept and operation.operand is not None else None


def _gathered(file: FileContext, operation: Operation, depth: int) -> _Shape | None:
    """`q.gather(1, index)` has the shape of the index."""
    index, axis = operation.argument(1, "index"), operation.argument(0, "dim")
    in_rows = axis is not None and file.source(axis) in ("1", "-1")
    return _shape(file, index, depth) if index is not None and in_rows else None


def _viewed(file: FileContext, sizes: list[ast.expr]) -> _Shape | None:
    texts = [file.source(size) for size in sizes]
    if texts == ["-1"]:
        return _Shape.FLAT
    return _Shape.COLUMN if len(texts) == 2 and texts[1] == "1" else None


def _stretched(file: FileContext, name: str, arguments: list[ast.expr], call: ast.Call) -> _Shape | None:
    axis = arguments[0] if arguments else keyword(call, "dim")
    if axis is None or file.source(axis) not in ("1", "-1"):
        return None
    return _Shape.COLUMN if name == "unsqueeze" else _Shape.FLAT


def _reduced(file: FileContext, arguments: list[ast.expr], call: ast.Call) -> _Shape | None:
    """A reduction over the second axis, taken for that of a matrix."""
    axis = arguments[0] if arguments else keyword(call, "dim", "axis")
    if axis is None or file.source(axis) not in ("1", "-1"):
        return None
    keeps = keyword(call, "keepdim", "keepdims") or (arguments[1] if len(arguments) > 1 else None)
    if keeps is None:
        return _Shape.FLAT
    return _Shape.COLUMN if is_true(keeps) else None


def _layer_shape(file: FileContext, call: ast.Call) -> _Shape | None:
    """A column where a call runs a layer, or a module of the file, that ends in one output."""
    made = maker(file, call.func) if not isinstance(call.func, ast.Call) else call.func
    if made is None:
        return None
    if _has_one_output(file, made):
        return _Shape.COLUMN
    name = terminal_name(made.func)
    classes = [node for node in file.nodes(ast.ClassDef) if node.name == name]
    if len(classes) != 1:
        return None
    forwards = [f for f in file.functions_by_name.get("forward", []) if file.parent(f) is classes[0]]
    returned = [statement.value for statement in file.returns_of(forwards[0])] if len(forwards) == 1 else []
    if len(returned) != 1 or not isinstance(returned[0], ast.Call):
        return None
    inner = maker(file, returned[0].func) if not isinstance(returned[0].func, ast.Call) else None
    return _Shape.COLUMN if inner is not None and _has_one_output(file, inner) else None


def _has_one_output(file: FileContext, made: ast.Call) -> bool:
    qualified = file.qualified_name(made.func) or ""
    if qualified == "torch.nn.Sequential":
        layers = [item for item in made.args if isinstance(item, ast.Call)]
        while layers and (file.qualified_name(layers[-1].func) or "").endswith(_ACTIVATIONS):
            layers.pop()
        return len(layers) > 0 and len(layers) <= len(made.args) and _has_one_output(file, layers[-1])
    size = argument(made, 1, "out_features")
    return qualified == "torch.nn.Linear" and isinstance(size, ast.Constant) and size.value == 1
