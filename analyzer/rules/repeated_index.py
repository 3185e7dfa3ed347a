"""Additions through an index that count a repeated place only once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import partial

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.forward_code import forward_code
from analyzer.placement import placement
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.module_examples import with_body
from analyzer.syntax import parameters, terminal_name

_HEAD = "import torch\nimport torch.nn as nn\n\n\n"
_BLOCK = (
    "class Block(nn.Module):\n    def __init__(self, cells=6):\n        super().__init__()\n"
    "        self.cells = cells\n\n    def forward(self, value, index):\n        index = index.long()\n"
)
_forward = partial(with_body, _HEAD + _BLOCK)
_FIRST = 12


_INDEX_NAME = re.compile(r"(^|_)(idx|index|indices|inds|ids|labels?|targets?|bins?|slots?|cells?|buckets?|segments?)$")


class RepeatedIndexUpdate(Rule):
    """`x[index] += value` with an index tensor that may name a place more than once."""

    id = "GP622"
    name = "repeated-index-update"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("device_compare",)
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    triggers = ("] +=", "] -=")
    documentation = Documentation(
        what_it_does=(
            "Finds `x[index] += value` and `x[index] -= value` where `index` is a tensor of integers out of an input, "
            "so that places may repeat. Masks, slices, numbers and indices that are distinct by their making (a sort, "
            "`nonzero`, `randperm`, `unique`) are left alone."
        ),
        why_is_this_bad=(
            "The line reads all places, adds, and writes them back: of several additions to one place only one stays, "
            "and on a GPU it is not determined which (measured: three additions of 1 to one place give 1)."
        ),
        faulty_example=_forward("count = torch.zeros_like(value)\ncount[index] += value\nreturn count"),
        right_example=_forward("count = torch.zeros_like(value)\ncount.index_add_(0, index, value)\nreturn count"),
        fix_safety="Unsafe: `index_put_(…, accumulate=True)` counts every addition, as was meant.",
    )
    valid = (
        _forward("count = torch.zeros_like(value)\ncount.index_add_(0, index, value)\nreturn count"),
        _forward("count = torch.zeros_like(value)\ncount[value > 0] += 1\nreturn count"),
        _forward("count = torch.zeros_like(value)\ncount[0] += 1\ncount[1:] += 2\nreturn count"),
        _forward("count = torch.zeros_like(value)\ncount[value.argsort()] += value\nreturn count"),
        _forward("index = index.unique()\ncount = torch.zeros_like(value)\ncount[index] += 1\nreturn count"),
        _forward("total = {}\nfor index in range(3):\n    total[index] += 1\nreturn total"),
        _HEAD + "def count(table, index):\n    table[index] += 1\n    return table\n",
    )
    invalid = (
        Invalid(_forward("count = torch.zeros_like(value)\ncount[index] += value\nreturn count"), (_FIRST + 1,)),
        Invalid(
            _forward("count = value.new_zeros(9)\ncell = (value / 0.1).long()\ncount[cell] += 1\nreturn count"),
            (_FIRST + 2,),
        ),
        Invalid(
            _HEAD + "def degree(index: torch.Tensor, n: int):\n    out = torch.zeros(n)\n    out[index] += 1\n"
            "    return out\n",
            (7,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every augmented assignment through a single index."""
        for statement in file.nodes(ast.AugAssign):
            target = statement.target
            if not isinstance(target, ast.Subscript) or not isinstance(statement.op, (ast.Add, ast.Sub)):
                continue
            if not _is_tensor(file, target.value) or not _may_repeat(file, target.slice):
                continue
            index = file.source(target.slice)
            yield Hit(
                statement,
                f"Where `{index}` names a place more than once, only one of the additions stays. Use `index_add_` or "
                "`index_put_(…, accumulate=True)`.",
                hypothesis={"index": index, "symbol": file.symbol(statement)},
                fix=_accumulating(file, statement, target),
            )


def _is_tensor(file: FileContext, expression: ast.expr) -> bool:
    places = placement(file)
    return places.follows(expression) or places.made(expression) is not None


def _may_repeat(file: FileContext, index: ast.expr) -> bool:
    """Whether an index is a tensor of integers that nothing makes distinct."""
    if isinstance(index, ast.Name):
        bindings = file.values.definitions(index)
        if not bindings:
            return _is_index_parameter(file, index)
        value = bindings[0].value if len(bindings) == 1 and bindings[0].element is None else None
        return isinstance(value, ast.Call) and _makes_places(file, value)
    return isinstance(index, ast.Call) and _makes_places(file, index)


def _makes_places(file: FileContext, call: ast.Call) -> bool:
    """`(x / cell).long()`, `index.long()`: rounding, or a conversion of what was given."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("long", "int", "to"):
        return False
    inner = call.func.value
    if isinstance(inner, ast.Name):
        return call.func.attr != "to" and _is_given(file, inner) and bool(_INDEX_NAME.search(inner.id))
    rounded = isinstance(inner, ast.BinOp) and isinstance(inner.op, (ast.Div, ast.Mult, ast.FloorDiv))
    called = terminal_name(inner.func) if isinstance(inner, ast.Call) else None
    return rounded or called in ("floor", "round", "trunc", "ceil")


def _is_given(file: FileContext, name: ast.Name) -> bool:
    function = file.enclosing_function(name)
    return function is not None and name.id in {parameter.arg for parameter in parameters(function)}


def _is_index_parameter(file: FileContext, name: ast.Name) -> bool:
    """A parameter that is a tensor, and an index by its name."""
    function = file.enclosing_function(name)
    if function is None or not _INDEX_NAME.search(name.id):
        return False
    argument = next((p for p in parameters(function) if p.arg == name.id), None)
    if argument is None:
        return False
    if argument.annotation is not None:
        return terminal_name(argument.annotation) in ("Tensor", "LongTensor", "IntTensor")
    return forward_code(file).runs_in_forward(function) and placement(file).follows(name)


def _accumulating(file: FileContext, statement: ast.AugAssign, target: ast.Subscript) -> Rewrite | None:
    """`index_put_` with `accumulate`, which takes a tensor of values."""
    if not placement(file).follows(statement.value):
        return None
    sign = "-" if isinstance(statement.op, ast.Sub) else ""
    value = file.operand_source(statement.value) if sign else file.source(statement.value)
    text = f"{file.source(target.value)}.index_put_(({file.source(target.slice)},), {sign}{value}, accumulate=True)"
    return Rewrite(FixSafety.UNSAFE, (Replacement(statement, text),))
