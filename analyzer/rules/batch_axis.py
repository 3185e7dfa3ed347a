"""Code that takes another axis for the batch: recurrent states, sequences, and shapes put in another order by `view`.

Each rule needs evidence for both sides: what the layer returns, and what the code takes it for. This module must not
follow values beyond one function.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.objects import argument, is_true, keyword, maker
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import quoted
from analyzer.syntax import is_whole_slice, spread, terminal_name
from analyzer.values.bindings import Binding

_HEAD = "import torch\nfrom torch import nn\n\n\n"
_RECURRENT = frozenset({"torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN"})


def _net(layer: str, body: str) -> str:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return (
        _HEAD + "class Net(nn.Module):\n    def __init__(self, dim=5, hidden=4):\n        super().__init__()\n"
        f"        self.rnn = {layer}\n        self.head = nn.Linear(hidden, 2)\n\n    def forward(self, x):\n" + lines
    )


_FIRST = 12
# Where `_net` makes the layer.
_MADE = 8
_GRU = "nn.GRU(dim, hidden, num_layers=2, batch_first=True)"
_LSTM = "nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)"
_PLAIN = "nn.GRU(dim, hidden, batch_first=True)"


def _layer_call(file: FileContext, call: ast.expr | None) -> tuple[str, ast.Call] | None:
    """The name of the torch layer that a call runs, and the call that made it."""
    if not isinstance(call, ast.Call) or isinstance(call.func, ast.Call):
        return None
    made = maker(file, call.func)
    name = file.qualified_name(made.func) if made is not None else None
    if made is None or name is None or not name.startswith("torch.nn."):
        return None
    return f"torch.nn.{name.rpartition('.')[2]}", made


class HiddenStateView(Rule):
    """The final state of a recurrent layer reshaped as if the batch came first."""

    id = "GP718"
    name = "hidden-state-view"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search", "batch_consistency")
    fix = FixSafety.UNSAFE
    triggers = ("GRU", "LSTM", "RNN")
    documentation = Documentation(
        what_it_does=(
            "Finds `view(batch, -1)` and its like on the final state of an `nn.LSTM`, `nn.GRU` or `nn.RNN` with more "
            "than one layer or two directions."
        ),
        why_is_this_bad=(
            "The state has the shape [layers * directions, batch, hidden], also with `batch_first=True`. Reshaping it "
            "to [batch, -1] puts the states of several samples into one row: the result of a sample depends on who "
            "else is in the batch, and nothing raises."
        ),
        faulty_example=_net(_LSTM, "_, (h, c) = self.rnn(x)\nreturn h.view(x.shape[0], -1)"),
        right_example=_net(_LSTM, "_, (h, c) = self.rnn(x)\nreturn h.transpose(0, 1).reshape(x.shape[0], -1)"),
        fix_safety="Unsafe: the batch is brought to the front first, which changes the values, as it is meant to.",
    )
    valid = (
        _net(_GRU, "_, h = self.rnn(x)\nreturn self.head(h[-1])"),
        _net(_GRU, "_, h = self.rnn(x)\nreturn h.transpose(0, 1).reshape(len(x), -1)"),
        _net(_GRU, "_, h = self.rnn(x)\nh = h.permute(1, 0, 2).contiguous()\nreturn h.view(len(x), -1)"),
        _net(_GRU, "_, h = self.rnn(x)\nreturn h.view(2, 1, len(x), -1)[-1]"),
        _net(_GRU, "_, h = self.rnn(x)\nh = h.view(self.rnn.num_layers, 1, len(x), 4)\nreturn h[-1, 0]"),
        _net(_GRU, "_, h = self.rnn(x)\nreturn torch.cat([h[0], h[1]], dim=1).view(len(x), -1)"),
        # every state of every layer as a row of its own
        _net(_GRU, "_, h = self.rnn(x)\nreturn self.head(h.view(-1, self.rnn.hidden_size))"),
        # one layer, one direction: nothing to mix up
        _net(_PLAIN, "_, h = self.rnn(x)\nreturn self.head(h.view(len(x), -1))"),
        # the outputs of all steps do have the batch first
        _net(_GRU, "out, _ = self.rnn(x)\nreturn out.reshape(len(x), -1)"),
        _net("nn.Linear(dim, hidden)", "a, b = self.rnn(x)\nreturn b.view(len(x), -1)"),
    )
    invalid = (
        Invalid(_net(_LSTM, "_, (h, c) = self.rnn(x)\nreturn h.view(x.shape[0], -1)"), (_FIRST + 1,)),
        Invalid(_net(_GRU, "batch = x.size(0)\n_, h = self.rnn(x)\nh = h.reshape(batch, -1)\nreturn h"), (_FIRST + 2,)),
        Invalid(_net(_GRU, "out, h = self.rnn(x)\nreturn torch.reshape(h, (h.size(1), -1))"), (_FIRST + 1,)),
        Invalid(_net(_LSTM, "out, state = self.rnn(x)\nreturn state[0].view(len(x), -1)"), (_FIRST + 1,)),
        Invalid(_net(_LSTM, "_, (h, c) = self.rnn(x)\nreturn h.view(-1, 2 * self.rnn.hidden_size)"), (_FIRST + 1,)),
        Invalid(_net(_LSTM, "_, (h, _) = self.rnn(x)\nreturn h.contiguous().view(1, len(x), -1)"), (_FIRST + 1,)),
        Invalid(_net(_LSTM, "h = self.rnn(x)[1][0]\nreturn h.view(len(x), -1)"), (_FIRST + 1,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for call in file.calls("view", "reshape"):
            operation = file.values.operation(call)
            if operation is None or operation.operand is None:
                continue
            made = _state_of(file, operation.operand)
            shape = spread(operation.arguments)
            if made is None or not _mixes(file, shape, operation.operand):
                continue
            text = f"{file.operand_source(operation.operand)}.transpose(0, 1).reshape("
            text += ", ".join(file.source(entry) for entry in shape) + ")"
            yield Hit(
                call,
                f"`{file.source(operation.operand)}` has the shape [layers * directions, batch, hidden], so this puts "
                f"the states of several samples into one row. Bring the batch to the front with `transpose(0, 1)`.",
                related=((made, "a recurrent layer with more than one layer or direction"),),
                fix=Rewrite(FixSafety.UNSAFE, (Replacement(call, text),)),
            )


def _state_of(file: FileContext, expression: ast.expr) -> ast.Call | None:
    """The maker of the recurrent layer whose final state an expression is; None for anything else, or one layer."""
    if isinstance(expression, ast.Call) and terminal_name(expression.func) == "contiguous":
        return _state_of(file, expression.func.value) if isinstance(expression.func, ast.Attribute) else None
    run, steps = _source_of_state(file, expression)
    layer = _layer_call(file, run)
    if layer is None or layer[0] not in _RECURRENT:
        return None
    wanted = (1, 0) if layer[0].endswith("LSTM") else (1,)
    if steps not in (wanted, (1, 1) if layer[0].endswith("LSTM") else (1,)):
        return None
    made = layer[1]
    layers = argument(made, 2, "num_layers")
    several = layers is not None and not (isinstance(layers, ast.Constant) and layers.value == 1)
    directions = keyword(made, "bidirectional")
    both = directions is not None and not (isinstance(directions, ast.Constant) and directions.value is False)
    return made if several or both else None


def _source_of_state(file: FileContext, expression: ast.expr) -> tuple[ast.expr | None, tuple[int, ...]]:
    """The call that an expression is a part of, and the indices that lead to the part."""
    steps: tuple[int, ...] = ()
    while isinstance(expression, ast.Subscript):
        index = expression.slice
        if not isinstance(index, ast.Constant) or not isinstance(index.value, int):
            return None, ()
        steps = (index.value, *steps)
        expression = expression.value
    if isinstance(expression, ast.Call):
        return expression, steps
    bindings = file.values.definitions(expression)
    if len(bindings) != 1 or bindings[0].operator is not None or bindings[0].index is not None:
        return None, ()
    source, inner = _assigned_part(bindings[0])
    if isinstance(source, ast.Subscript):
        source, outer = _source_of_state(file, source)
        return source, (*outer, *inner, *steps)
    return source, (*inner, *steps)


def _assigned_part(binding: Binding) -> tuple[ast.expr | None, tuple[int, ...]]:
    """What a binding's statement assigns, and where in it the name stands: (call, (1, 0)) of `_, (h, c) = call`."""
    statement = binding.statement
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None, ()
    steps = _position(statement.targets[0], binding.name)
    return (statement.value, steps) if steps is not None else (None, ())


def _position(target: ast.expr, name: str) -> tuple[int, ...] | None:
    if isinstance(target, ast.Name):
        return () if target.id == name else None
    if isinstance(target, (ast.Tuple, ast.List)):
        for place, element in enumerate(target.elts):
            inner = _position(element, name)
            if inner is not None:
                return (place, *inner)
    return None


def _mixes(file: FileContext, shape: list[ast.expr], state: ast.expr) -> bool:
    """Whether a new shape takes [layers, batch, hidden] for [batch, ...]: it has two sizes, the first a batch."""
    sizes = [entry for entry in shape if not (isinstance(entry, ast.Constant) and entry.value == 1)]
    if len(sizes) != 2:
        return False
    first, second = sizes
    if _is_minus_one(first):
        return isinstance(second, ast.BinOp) and isinstance(second.op, ast.Mult)
    if isinstance(first, (ast.Constant, ast.BinOp)):
        return False
    text = file.source(first)
    if re.search(r"layer|direct|_dir\b", text):
        return False
    return text not in {f"{file.source(state)}.{size}" for size in ("shape[0]", "size(0)")} | {
        f"len({file.source(state)})"
    }


def _is_minus_one(entry: ast.expr) -> bool:
    return isinstance(entry, ast.UnaryOp) and isinstance(entry.operand, ast.Constant) and entry.operand.value == 1


# --- sequences -------------------------------------------------------------------------------------------------------

_SEQUENCE = _RECURRENT | {
    "torch.nn.MultiheadAttention",
    "torch.nn.TransformerEncoder",
    "torch.nn.TransformerDecoder",
    "torch.nn.TransformerEncoderLayer",
    "torch.nn.TransformerDecoderLayer",
}
_STACKS = ("torch.nn.TransformerEncoder", "torch.nn.TransformerDecoder")
_TUPLES = _RECURRENT | {"torch.nn.MultiheadAttention"}
_REDUCTIONS = frozenset({"mean", "sum", "amax"})


class SequenceAxisTakenForBatch(Rule):
    """A step picked, or an average taken, along the batch of a sequence layer's output."""

    id = "GP725"
    name = "sequence-axis-confused"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search", "batch_consistency")
    triggers = ("GRU", "LSTM", "RNN", "Transformer", "MultiheadAttention")
    documentation = Documentation(
        what_it_does=(
            "Finds `out[:, -1]`, `out[:, 0]` and `out.mean(dim=1)` on the output of a recurrent, attention or "
            "transformer layer without `batch_first=True`, and `out[-1]` or `out.mean(0)` on one with it."
        ),
        why_is_this_bad=(
            "Without `batch_first` the second axis is the batch: the last sample is picked instead of the last step, "
            "and the layer has mixed the samples of the batch with each other as if they were steps. Shapes fit, "
            "training runs, and what a sample yields depends on its neighbours."
        ),
        faulty_example=_net("nn.GRU(dim, hidden)", "out, _ = self.rnn(x)\nreturn self.head(out[:, -1])"),
        right_example=_net(_PLAIN, "out, _ = self.rnn(x)\nreturn self.head(out[:, -1])"),
        fix_safety="No automatic fix: whether the layer or the index is wrong depends on the input's shape.",
    )
    valid = (
        _net(_PLAIN, "out, _ = self.rnn(x)\nreturn self.head(out[:, -1])"),
        _net("nn.GRU(dim, hidden)", "out, _ = self.rnn(x)\nreturn self.head(out[-1])"),
        _net("nn.GRU(dim, hidden)", "out, h = self.rnn(x)\nreturn self.head(h[-1])"),
        _net("nn.GRU(dim, hidden)", "out, _ = self.rnn(x)\nout = out.transpose(0, 1)\nreturn self.head(out[:, -1])"),
        _net("nn.GRU(dim, hidden)", "out, _ = self.rnn(x.transpose(0, 1))\nreturn self.head(out.mean(0))"),
        _net("nn.GRU(dim, hidden, batch_first=first)", "out, _ = self.rnn(x)\nreturn self.head(out[:, -1])"),
        # packed sequences have no axes of their own
        _net(
            "nn.GRU(dim, hidden)",
            "out, _ = self.rnn(x)\nout, n = nn.utils.rnn.pad_packed_sequence(out, True)\nreturn self.head(out[:, 0])",
        ),
        # a range of samples, or of features
        _net("nn.GRU(dim, hidden)", "out, _ = self.rnn(x)\nreturn out[:, :4], out[..., -1], out.mean(-1)"),
        _net("nn.MultiheadAttention(dim, 1)", "out, w = self.rnn(x, x, x)\nreturn out[0], w[:, 0]"),
        _net(
            "nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 2)",
            "return self.head(self.rnn(x)[:, 0])",
        ),
        _net("nn.Linear(dim, hidden)", "return self.rnn(x)[:, -1]"),
        _net("nn.GRU(dim, hidden)", "b, t, d = x.shape\nx = x.transpose(0, 1)\nreturn self.rnn(x)[0]"),
        _net("nn.GRU(dim, hidden)", "t, b, d = x.shape\nreturn self.rnn(x)[0]"),
        _net("nn.GRU(dim, hidden)", "return self.rnn(x.flatten(2).permute(2, 0, 1))[0]"),
        _net(
            "nn.MultiheadAttention(dim, 1, batch_first=True)",
            "t = x.flatten(2).transpose(1, 2)\nreturn self.rnn(t, t, t)",
        ),
        _net("nn.GRU(dim, hidden, batch_first=True)", "b, t, d = x.shape\nreturn self.rnn(x)[0]"),
    )
    invalid = (
        Invalid(_net("nn.GRU(dim, hidden)", "out, _ = self.rnn(x)\nreturn self.head(out[:, -1])"), (_FIRST + 1,)),
        Invalid(_net("nn.LSTM(dim, hidden, 2)", "out, (h, c) = self.rnn(x)\nreturn out[:, -1, :]"), (_FIRST + 1,)),
        Invalid(_net("nn.RNN(dim, hidden)", "out = self.rnn(x)[0]\nreturn self.head(out.mean(dim=1))"), (_FIRST + 1,)),
        Invalid(_net(_PLAIN, "out, _ = self.rnn(x)\nreturn self.head(out[-1])"), (_FIRST + 1,)),
        Invalid(_net(_PLAIN, "out, _ = self.rnn(x)\nreturn self.head(torch.mean(out, 0))"), (_FIRST + 1,)),
        Invalid(_net("nn.GRU(dim, hidden)", "b, t, d = x.shape\nreturn self.rnn(x)[0]"), (_MADE,)),
        Invalid(
            _net(
                "nn.GRU(dim, hidden)\n        self.table = nn.Embedding(9, 5)",
                "batch, steps = x.shape\nout, _ = self.rnn(self.table(x))\nreturn out",
            ),
            (_MADE,),
        ),
        Invalid(
            _net(
                "nn.MultiheadAttention(dim, 1)",
                "t = x.flatten(2).transpose(1, 2)\nout, _ = self.rnn(t, t, t)\nreturn out.mean(dim=1)",
            ),
            (_MADE,),
        ),
        Invalid(_net("nn.MultiheadAttention(dim, 1)", "out, w = self.rnn(x, x, x)\nreturn out.mean(1)"), (_FIRST + 1,)),
        Invalid(
            _net("nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 2)", "return self.head(self.rnn(x)[:, 0])"),
            (_FIRST,),
        ),
        Invalid(
            _HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        layer = nn.TransformerEncoderLayer(8, 2)\n"
            "        self.encoder = nn.TransformerEncoder(layer, num_layers=2)\n\n    def forward(self, x):\n"
            "        x = self.encoder(x)\n        return x.mean(dim=1)\n",
            (13,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        if not file.calls(*(name.rpartition(".")[2] for name in _SEQUENCE)):
            return
        given_first = list(_batch_given_first(file))
        yield from given_first
        for node, source, axis in _picks(file):
            found = _sequence_output(file, source)
            if found is None or any(hit.node is found[0] for hit in given_first):
                continue
            layer, batch_first = found
            if axis != (0 if batch_first else 1):
                continue
            short = (file.qualified_name(layer.func) or "").rpartition(".")[2]
            order = "has `batch_first=True`: its first" if batch_first else "has no `batch_first=True`: its second"
            yield Hit(
                node,
                f"This `nn.{short}` {order} axis is the batch, so this works across samples instead of steps.",
                related=((layer, "the layer that made it"),),
            )


def _batch_given_first(file: FileContext) -> Iterator[Hit]:
    """Layers without `batch_first` that are given a tensor whose first axis is the batch."""
    told: set[ast.Call] = set()
    for call, given, source in (*_unpacked_batches(file), *_channels_last(file)):
        layer = _layer_call(file, call)
        if layer is not None and layer[0] in _SEQUENCE and _comes_first(file, layer) is False and layer[1] not in told:
            told.add(layer[1])
            short = layer[0].rpartition(".")[2]
            yield Hit(
                layer[1],
                f"`{quoted(file, given)}` has its batch first (line {call.lineno}), but this `nn.{short}` has no "
                f"`batch_first=True`: it takes the samples for steps, and mixes them.",
                related=((source, "the batch is the first axis"), (call, "the layer is run here")),
            )


def _unpacked_batches(file: FileContext) -> Iterator[tuple[ast.Call, ast.expr, ast.AST]]:
    """(call, what it is given, evidence): of `batch, steps, width = x.shape`, and of embedded `batch, steps` ids."""
    for assignment in file.nodes(ast.Assign):
        target = assignment.targets[0]
        names = [n.id for n in target.elts if isinstance(n, ast.Name)] if isinstance(target, ast.Tuple) else []
        if len(names) not in (2, 3) or not _BATCH.fullmatch(names[0]) or _BATCH.fullmatch(names[1]):
            continue
        function = file.enclosing_function(assignment)
        for call in file.nodes_in(function, ast.Call) if function is not None else []:
            given = call.args[0] if call.args else None
            tensor = given if len(names) == 3 else _embedded(file, given)
            if given is None or not isinstance(tensor, ast.Name) or not _is_shape(assignment.value, tensor.id):
                continue
            if _same_tensor(file, assignment, tensor):
                yield call, given, assignment


def _embedded(file: FileContext, given: ast.expr | None) -> ast.expr | None:
    """`ids` of `self.table(ids)`, where `self.table` is an embedding; also through a variable."""
    if isinstance(given, ast.Name):
        given = file.values.single_definition(given)
    layer = _layer_call(file, given)
    if layer is None or layer[0] != "torch.nn.Embedding" or not isinstance(given, ast.Call) or not given.args:
        return None
    return given.args[0]


def _channels_last(file: FileContext) -> Iterator[tuple[ast.Call, ast.expr, ast.AST]]:
    """The same of `features.flatten(2).transpose(1, 2)`: [batch, positions, channels]."""
    for swap in file.calls("transpose", "permute"):
        inner = swap.func.value if isinstance(swap.func, ast.Attribute) else None
        order = [ast.unparse(argument) for argument in swap.args]
        swapped = order in (["1", "2"], ["2", "1"], ["-1", "-2"], ["-2", "-1"], ["0", "2", "1"])
        flat = isinstance(inner, ast.Call) and terminal_name(inner.func) == "flatten"
        if not (swapped and flat and isinstance(inner, ast.Call) and [ast.unparse(a) for a in inner.args[:1]] == ["2"]):
            continue
        parent, function = file.parent(swap), file.enclosing_function(swap)
        if isinstance(parent, ast.Call) and parent.args and parent.args[0] is swap:
            yield parent, swap, swap
        elif isinstance(parent, ast.Assign) and function is not None:
            for call in file.nodes_in(function, ast.Call):
                given = call.args[0] if call.args else None
                if isinstance(given, ast.Name) and file.values.single_definition(given) is swap:
                    yield call, given, swap


_BATCH = re.compile(r"b|bs|bsz|batch|batch_size|batchsize|n_batch|num_batch", re.IGNORECASE)


def _picks(file: FileContext) -> Iterator[tuple[ast.expr, ast.expr, int]]:
    """Where one entry is picked or all are averaged along the first or second axis: (node, tensor, axis)."""
    for subscript in file.nodes(ast.Subscript):
        if not isinstance(subscript.ctx, ast.Load):
            continue
        index = subscript.slice
        if isinstance(index, ast.Tuple) and len(index.elts) >= 2:
            rest = index.elts[2:]
            if is_whole_slice(index.elts[0]) and _is_position(index.elts[1]) and all(map(is_whole_slice, rest)):
                yield subscript, subscript.value, 1
        elif _is_minus_one(index):
            yield subscript, subscript.value, 0
    for call in file.calls(*_REDUCTIONS):
        operation = file.values.operation(call)
        dimension = operation.argument(0, "dim", "axis") if operation is not None else None
        value = dimension.value if isinstance(dimension, ast.Constant) else None
        if operation is not None and operation.operand is not None and type(value) is int and value in (0, 1):
            yield call, operation.operand, value


def _is_position(index: ast.expr) -> bool:
    return _is_minus_one(index) or (isinstance(index, ast.Constant) and index.value == 0)


def _sequence_output(file: FileContext, expression: ast.expr) -> tuple[ast.Call, bool] | None:
    """(the call that made the layer, whether the batch comes first) of a sequence layer's output."""
    if not isinstance(expression, (ast.Name, ast.Call, ast.Subscript)):
        return None
    run, steps = _source_of_state(file, expression)
    layer = _layer_call(file, run)
    if layer is None or layer[0] not in _SEQUENCE or steps != ((0,) if layer[0] in _TUPLES else ()):
        return None
    first = _comes_first(file, layer)
    return (layer[1], first) if first is not None else None


def _comes_first(file: FileContext, layer: tuple[str, ast.Call]) -> bool | None:
    """Whether a sequence layer has the batch first; None when its file does not tell."""
    name, made = layer
    if name in _STACKS:
        inner = argument(made, 0, "encoder_layer", "decoder_layer")
        source = maker(file, inner) if inner is not None else None
        if source is None or not (file.qualified_name(source.func) or "").startswith("torch.nn."):
            return None
        made = source
    flag = keyword(made, "batch_first")
    if any(item.arg is None for item in made.keywords) or len(made.args) > 4:
        return None  # the flag may be among them
    if flag is None:
        return False
    return True if is_true(flag) else None


# The relative positions of Transformer-XL are shifted by such a view, on purpose (transformers' Funnel has one).
_SHIFTS = re.compile(r"shift|skew|shuffle|rel(ative)?_|hash|scramble")


# --- views -----------------------------------------------------------------------------------------------------------


class ViewSwapsAxes(Rule):
    """A reshape that names the axes of its input in another order."""

    id = "GP726"
    name = "view-swaps-axes"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search", "batch_consistency")
    triggers = ("view", "reshape")
    documentation = Documentation(
        what_it_does=(
            "Finds `x.view(t, b, d)` and `x.reshape(t, b, d)` where `b, t, d = x.shape`: the sizes of the input in "
            "another order, or an axis split (`x.view(b, heads, t, -1)`) with the parts put around another axis."
        ),
        why_is_this_bad=(
            "`view` and `reshape` never move elements: they cut the same row of numbers differently. The result has "
            "the shape of a transposed tensor and scrambled contents, so samples, steps or heads are mixed."
        ),
        faulty_example=_HEAD + "def steps_first(x):\n    b, t, d = x.shape\n    return x.view(t, b, d)\n",
        right_example=_HEAD + "def steps_first(x):\n    b, t, d = x.shape\n    return x.transpose(0, 1)\n",
        fix_safety="No automatic fix: the transposition that was meant has to be read from the code around it.",
    )
    valid = (
        _HEAD + "def f(x):\n    b, t, d = x.shape\n    return x.view(b * t, d)\n",
        _HEAD + "def f(x):\n    b, t, d = x.shape\n    return x.view(t * b, d)\n",
        _HEAD + "def f(x, heads):\n    b, t, d = x.shape\n    return x.view(b, t, heads, -1).transpose(1, 2)\n",
        _HEAD + "def f(x, heads):\n    b, t, d = x.shape\n    return x.view(b, t, heads, d // heads)\n",
        _HEAD + "def f(x):\n    b, t, d = x.shape\n    x = x.transpose(0, 1)\n    return x.reshape(t, b, d)\n",
        _HEAD + "def f(x):\n    b, t, d = x.shape\n    return x.permute(1, 0, 2).reshape(t, b, d)\n",
        _HEAD + "def f(x):\n    b, c, h, w = x.shape\n    return x.reshape(b, c, h // 2, 2, w // 2, 2)\n",
        _HEAD + "def f(x, y):\n    b, t, d = x.shape\n    return y.view(t, b, d)\n",
        _HEAD + "def f(x):\n    b, t, d = x.shape\n    return x.view(b, 1, t, -1)\n",
        _HEAD + "def f(x, groups):\n    b, c, h, w = x.shape\n    return x.view(b, groups, c // groups, h, w)\n",
        _HEAD + "def f(x):\n    return x.view(x.size(0), x.size(1), -1)\n",
        # cut into windows along the first axis
        _HEAD + "def f(x, parts):\n    b, t, d = x.shape\n    return x.view(parts, b // parts, t, d)\n",
        _HEAD + "def f(x):\n    b, h, w, c, _, _ = x.shape\n    return x.reshape(b * h * w, c, h, w)\n",
        _HEAD + "def relative_shift(x):\n    b, n, t, m = x.shape\n    return x.reshape(b, n, m, t)[:, :, 1:]\n",
        # two names for one size: nothing is known about their order
        _HEAD + "def f(x):\n    n, n, d = x.shape\n    return x.view(n, n, d)\n",
    )
    invalid = (
        Invalid(_HEAD + "def f(x):\n    b, t, d = x.shape\n    return x.view(t, b, d)\n", (7,)),
        Invalid(_HEAD + "def f(x):\n    b, t, d = x.size()\n    return x.reshape(b, d, t)\n", (7,)),
        Invalid(_HEAD + "def f(x):\n    return x.view(x.size(1), x.size(0), -1)\n", (6,)),
        Invalid(_HEAD + "def f(x):\n    return x.reshape(x.shape[1], x.shape[0], x.shape[2])\n", (6,)),
        Invalid(_HEAD + "def f(x, heads):\n    b, t, d = x.shape\n    return x.view(b, heads, t, d // heads)\n", (7,)),
        Invalid(_HEAD + "def f(x, heads):\n    b, t, d = x.shape\n    return x.view(b, heads, t, -1)\n", (7,)),
        Invalid(_HEAD + "def f(x):\n    b, t, h, d = x.shape\n    return x.reshape(b * h, t, d)\n", (7,)),
        Invalid(_HEAD + "def f(x):\n    b, c, h, w = x.shape\n    return torch.reshape(x, (b, h * w, c))\n", (7,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for call in file.calls("view", "reshape"):
            operation = file.values.operation(call)
            if operation is None or not isinstance(operation.operand, ast.Name):
                continue
            shape = spread(operation.arguments)
            function = file.enclosing_function(call)
            if len(shape) < 2 or (function is not None and _SHIFTS.search(function.name)):
                continue
            axes = [_axes_of(file, entry, operation.operand) for entry in shape]
            rank = _rank(file, operation.operand)
            if _in_other_order(axes) or _split_around(shape, axes, rank):
                name = operation.operand.id
                yield Hit(
                    call,
                    f"This gives `{name}` its sizes in another order, but moves no element: the contents are "
                    f"scrambled. Use `transpose` or `permute` before it.",
                )


def _axes_of(file: FileContext, entry: ast.expr, tensor: ast.Name) -> frozenset[int] | None:
    """The axes of a tensor whose sizes an entry of a shape multiplies; None when it has other factors."""
    if isinstance(entry, ast.BinOp) and isinstance(entry.op, ast.Mult):
        left, right = _axes_of(file, entry.left, tensor), _axes_of(file, entry.right, tensor)
        return left | right if left is not None and right is not None else None
    axis = _axis(file, entry, tensor)
    return frozenset({axis}) if axis is not None else None


def _axis(file: FileContext, entry: ast.expr, tensor: ast.Name) -> int | None:
    if isinstance(entry, ast.Name):
        bindings = file.values.definitions(entry)
        if len(bindings) != 1 or bindings[0].operator is not None:
            return None
        unpacked = _unpacked_axis(bindings[0], tensor.id)
        if unpacked is not None:
            return unpacked if _same_tensor(file, bindings[0].statement, tensor) else None
        return _direct_axis(bindings[0].value, tensor.id) if _same_tensor(file, bindings[0].statement, tensor) else None
    return _direct_axis(entry, tensor.id)


def _unpacked_axis(binding: Binding, name: str) -> int | None:
    """The place of a name in `b, t, d = x.shape`."""
    statement = binding.statement
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or not _is_shape(statement.value, name):
        return None
    target = statement.targets[0]
    if not isinstance(target, ast.Tuple) or not all(isinstance(element, ast.Name) for element in target.elts):
        return None
    names = [element.id for element in target.elts if isinstance(element, ast.Name)]
    return names.index(binding.name) if names.count(binding.name) == 1 else None


def _is_shape(value: ast.expr | None, name: str) -> bool:
    if isinstance(value, ast.Call) and not value.args and not value.keywords:
        value = value.func if terminal_name(value.func) == "size" else None
    elif not (isinstance(value, ast.Attribute) and value.attr == "shape"):
        return False
    return isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id == name


def _direct_axis(entry: ast.expr | None, name: str) -> int | None:
    """`1` of `x.size(1)` and `x.shape[1]`."""
    index: ast.expr | None = None
    if isinstance(entry, ast.Call) and terminal_name(entry.func) == "size" and len(entry.args) == 1:
        holder = entry.func.value if isinstance(entry.func, ast.Attribute) else None
        index = entry.args[0] if isinstance(holder, ast.Name) and holder.id == name else None
    elif isinstance(entry, ast.Subscript) and _is_shape(entry.value, name):
        index = entry.slice
    if isinstance(index, ast.Constant) and isinstance(index.value, int):
        return index.value
    return None


def _same_tensor(file: FileContext, statement: ast.stmt, tensor: ast.Name) -> bool:
    """Whether a name stands for the same tensor at the statement that read its shape and at its use."""
    function = file.enclosing_function(tensor)
    if function is None:
        return False
    bindings = file.values.bindings(function)
    then, _ = bindings.reaching(tensor.id, statement)
    now, _ = bindings.reaching(tensor.id, file.statement(tensor))
    return {id(b.statement) for b in then} == {id(b.statement) for b in now}


def _rank(file: FileContext, tensor: ast.Name) -> int | None:
    function = file.enclosing_function(tensor)
    if function is None:
        return None
    for assignment in file.nodes_in(function, ast.Assign):
        target = assignment.targets[0]
        if isinstance(target, ast.Tuple) and _is_shape(assignment.value, tensor.id):
            return len(target.elts) if _same_tensor(file, assignment, tensor) else None
    return None


def _in_other_order(axes: list[frozenset[int] | None]) -> bool:
    known = [entry for entry in axes if entry]
    if len(frozenset[int]().union(*known)) < sum(map(len, known)):
        return False  # a size that stands twice says nothing of the axis it came from
    return any(max(first) > min(second) for first, second in pairwise(known))


def _split_around(shape: list[ast.expr], axes: list[frozenset[int] | None], rank: int | None) -> bool:
    """Whether the last axis was cut in two with another axis between: `view(b, heads, t, d // heads)`."""
    if rank is None or rank < 3:
        return False
    last = shape[-1]
    whole = axes[: len(axes) - 1]
    kept = [entry for entry in whole if entry is not None]
    if kept != [frozenset({axis}) for axis in range(rank - 1)]:
        return False
    strangers = [place for place, entry in enumerate(whole) if entry is None]
    if len(strangers) != 1 or _is_one_or_open(shape[strangers[0]]):
        return False
    splits = _is_minus_one(last) or (isinstance(last, ast.BinOp) and isinstance(last.op, ast.FloorDiv))
    return splits and strangers[0] < len(whole) - 1 and strangers[0] > 0


def _is_one_or_open(entry: ast.expr) -> bool:
    return _is_minus_one(entry) or (isinstance(entry, ast.Constant) and entry.value == 1)
