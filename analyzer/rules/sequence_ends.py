"""The last step of a recurrent layer's output, taken for what the layer has read, where it is not.

This module must not judge sequences whose length and direction the class does not show.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, Severity
from analyzer.objects import argument, is_true, keyword, maker
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.syntax import FunctionNode, is_whole_slice, parameters, terminal_name

_HEAD = "import torch\nfrom torch import nn\n\n\n"
_RECURRENT = frozenset({"torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN"})
_LENGTHS = re.compile(r"len(gth)?s?$|_lens?_|mask$", re.IGNORECASE)


def _net(layer: str, body: str, given: str = "ids") -> str:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return (
        _HEAD + "class Net(nn.Module):\n    def __init__(self, dim=5, hidden=4):\n        super().__init__()\n"
        "        self.table = nn.Embedding(9, dim, padding_idx=0)\n"
        f"        self.rnn = {layer}\n        self.head = nn.Linear(8, 2)\n\n    def forward(self, {given}):\n" + lines
    )


_FIRST = 13
_BOTH = "nn.GRU(dim, hidden, batch_first=True, bidirectional=True)"
_ONE = "nn.GRU(dim, hidden, batch_first=True)"


class LastStepNotTheEnd(Rule):
    """`out[:, -1]` of a layer that reads in both directions, or of padded sequences."""

    id = "GP739"
    name = "last-step-not-the-end"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("batch_consistency",)
    triggers = ("GRU", "LSTM", "RNN")
    documentation = Documentation(
        what_it_does=(
            "Finds `out[:, -1]` of an `nn.LSTM`, `nn.GRU` or `nn.RNN` that is bidirectional, and of one that reads "
            "padded embeddings (`padding_idx`) unpacked, or whose function is given the lengths and never uses them."
        ),
        why_is_this_bad=(
            "At the last step the backward direction has read a single item: half of the features know nothing of the "
            "sequence. And the last step of a padded sequence is padding, so what a sample yields depends on the "
            "longest of its batch."
        ),
        faulty_example=_net(_BOTH, "out, _ = self.rnn(self.table(ids))\nreturn self.head(out[:, -1])"),
        right_example=_net(
            _BOTH, "_, h = self.rnn(self.table(ids))\nreturn self.head(torch.cat([h[-2], h[-1]], dim=-1))"
        ),
        fix_safety="No automatic fix: the final states, packing and a gather at the lengths are all possible.",
    )
    valid = (
        documentation.right_example,
        # the half of the forward direction
        _net(_BOTH, "out, _ = self.rnn(self.table(ids))\nreturn out[:, -1, :4]"),
        _net(_BOTH, "out, _ = self.rnn(self.table(ids))\nreturn torch.cat([out[:, -1], out[:, 0]], dim=-1)"),
        # sequences of one length
        _net(_ONE, "out, _ = self.rnn(x)\nreturn self.head(out[:, -1])", "x"),
        _net(_ONE, "n = lengths.max()\nout, _ = self.rnn(x[:, :n])\nreturn self.head(out[:, -1])", "x, lengths"),
        # packed
        _net(
            _ONE,
            "packed = nn.utils.rnn.pack_padded_sequence(self.table(ids), lengths, True)\nout, h = self.rnn(packed)\n"
            "return self.head(h[-1])",
            "ids, lengths",
        ),
        _net("nn.Linear(dim, 8)", "return self.head(self.rnn(self.table(ids))[:, -1])"),
        _net(_ONE, "out, _ = self.rnn(self.table(ids))\nreturn self.head(out[:, 0])"),
    )
    invalid = (
        Invalid(documentation.faulty_example, (_FIRST + 1,)),
        Invalid(_net(_BOTH, "out = self.rnn(x)[0]\nreturn self.head(out[:, -1, :])", "x"), (_FIRST + 1,)),
        Invalid(_net(_ONE, "out, _ = self.rnn(self.table(ids))\nreturn self.head(out[:, -1])"), (_FIRST + 1,)),
        Invalid(_net(_ONE, "x = self.table(ids)\nout, h = self.rnn(x)\nreturn self.head(out[:, -1])"), (_FIRST + 2,)),
        Invalid(_net(_ONE, "out, _ = self.rnn(x)\nreturn self.head(out[:, -1])", "x, lengths"), (_FIRST + 1,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for part, run, made in _last_steps(file):
            function = file.enclosing_function(part)
            if function is None or _also_first(file, function, part):
                continue
            if is_true(keyword(made, "bidirectional")):
                reason = "at the last step the backward direction has read one item only. Join the final states"
            elif _is_padded(file, function, run):
                reason = "the last step of a shorter sequence is padding. Pack the sequences, or gather at the lengths"
            else:
                continue
            yield Hit(
                part,
                f"`{file.source(part)}` is not what the layer has read in the end: {reason}.",
                related=((made, "the recurrent layer"),),
            )


def _last_steps(file: FileContext) -> Iterator[tuple[ast.Subscript, ast.Call, ast.Call]]:
    """(`out[:, -1]`, the call of the layer, the call that made the layer) of layers with the batch first."""
    for part in file.nodes(ast.Subscript):
        if not isinstance(part.ctx, ast.Load) or not _is_last(part.slice):
            continue
        run = _run_of(file, part.value)
        made = maker(file, run.func) if run is not None and not isinstance(run.func, ast.Call) else None
        if run is None or made is None or file.qualified_name(made.func) not in _RECURRENT:
            continue
        if is_true(keyword(made, "batch_first")):
            yield part, run, made


def _is_last(index: ast.expr) -> bool:
    """`[:, -1]` and `[:, -1, :]`."""
    if not isinstance(index, ast.Tuple) or len(index.elts) not in (2, 3):
        return False
    first, second, *rest = index.elts
    return is_whole_slice(first) and ast.unparse(second) == "-1" and all(is_whole_slice(item) for item in rest)


def _run_of(file: FileContext, output: ast.expr) -> ast.Call | None:
    """The call of which an expression is the first result: `out` of `out, _ = self.rnn(x)`, `self.rnn(x)[0]`."""
    if isinstance(output, ast.Name):
        bindings = file.values.definitions(output)
        statement = bindings[0].statement if len(bindings) == 1 else None
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return None
        target, value = statement.targets[0], statement.value
        if isinstance(target, ast.Name):
            return _run_of(file, value) if isinstance(value, ast.Subscript) else None
        first = target.elts[0] if isinstance(target, ast.Tuple) else None
        is_first = isinstance(first, ast.Name) and first.id == output.id
        return value if is_first and isinstance(value, ast.Call) else None
    if isinstance(output, ast.Subscript) and isinstance(output.slice, ast.Constant) and output.slice.value == 0:
        return output.value if isinstance(output.value, ast.Call) else None
    return None


def _also_first(file: FileContext, function: FunctionNode, part: ast.Subscript) -> bool:
    """Whether the function takes the first step as well, where the backward direction ends."""
    output = re.escape(file.source(part.value))
    return re.search(rf"{output}\[:, 0\b", file.source(function)) is not None


def _is_padded(file: FileContext, function: FunctionNode, run: ast.Call) -> bool:
    if not run.args or "pack" in file.source(function):
        return False
    given = [p.arg for p in parameters(function) if _LENGTHS.search(p.arg)]
    read = {name.id for name in file.nodes_in(function, ast.Name) if isinstance(name.ctx, ast.Load)}
    if given:
        return read.isdisjoint(given)
    fed = run.args[0]
    if isinstance(fed, ast.Name):
        fed = file.values.single_definition(fed) or fed
    made = maker(file, fed.func) if isinstance(fed, ast.Call) and not isinstance(fed.func, ast.Call) else None
    if made is None or terminal_name(made.func) != "Embedding":
        return False
    padding = argument(made, 2, "padding_idx")
    return padding is not None and not (isinstance(padding, ast.Constant) and padding.value is None)
