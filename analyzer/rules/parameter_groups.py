"""Groups of parameters that a comparison of names puts together wrongly.

This module must not judge which parameters ought to decay.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.syntax import terminal_name

_HEAD = "import torch\n\n\ndef build(net):\n    no_decay = ['bias', 'LayerNorm.weight']\n"
_FIRST = 6
_REST = (
    "    rest = [p for n, p in net.named_parameters() if any(part in n for part in no_decay)]\n"
    "    return torch.optim.AdamW([{'params': main}, {'params': rest, 'weight_decay': 0.0}])\n"
)


class NamePartsComparedWhole(Rule):
    """`name in ['bias', 'LayerNorm.weight']`, where the names of parameters carry the path of their module."""

    id = "GP736"
    name = "name-parts-compared-whole"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ()
    triggers = ("named_parameters",)
    documentation = Documentation(
        what_it_does=(
            "Finds `name in parts` and `name not in parts` for the names that `named_parameters()` yields, where "
            "`parts` is a list with `'bias'` and other ends of names."
        ),
        why_is_this_bad=(
            "`in` looks for the whole name in the list, and parameters are called `encoder.0.bias`: none is found, so "
            "the group that was to be treated differently (no weight decay, frozen) stays empty."
        ),
        faulty_example=_HEAD + "    main = [p for n, p in net.named_parameters() if n not in no_decay]\n" + _REST,
        right_example=_HEAD
        + "    main = [p for n, p in net.named_parameters() if not any(part in n for part in no_decay)]\n"
        + _REST,
        fix_safety="No automatic fix: parts, ends and whole names may all be meant.",
    )
    valid = (
        documentation.right_example,
        # whole names
        "def split(net, frozen):\n    return [p for n, p in net.named_parameters() if n not in frozen]\n",
        "def split(net):\n    frozen = ['head.bias', 'head.weight']\n"
        "    return [p for n, p in net.named_parameters() if n in frozen]\n",
        # the parameters of one layer
        "def split(layer):\n    return [p for n, p in layer.named_parameters() if n in ('weight', 'bias')]\n",
        _HEAD + "    return [n for n, p in net.named_parameters() if n.split('.')[-1] in no_decay]\n",
        _HEAD + "    return [w for w in ('bias', 'scale') if w in no_decay]\n",
    )
    invalid = (
        Invalid(documentation.faulty_example, (_FIRST,)),
        Invalid(_HEAD + "    return [p for n, p in net.named_parameters() if n in no_decay]\n", (_FIRST,)),
        Invalid(
            _HEAD + "    for name, p in net.named_parameters():\n        if p.requires_grad and name in no_decay:\n"
            "            p.requires_grad = False\n",
            (_FIRST + 1,),
        ),
        Invalid(
            _HEAD + "    named = list(net.named_parameters())\n    return [p for n, p in named if n not in no_decay]\n",
            (_FIRST + 1,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for comparison, name in _of_names(file):
            parts = _strings(file, comparison.comparators[0])
            if parts is None or not _are_parts(parts):
                continue
            yield Hit(
                comparison,
                f"The names of parameters carry the path of their module (`encoder.0.bias`), so `{name}` as a whole is "
                f"never in this list of parts. Ask whether any part is in the name.",
            )


def _of_names(file: FileContext) -> Iterator[tuple[ast.Compare, str]]:
    """(comparison, name) of every `name in …` whose name comes from `named_parameters()`."""
    for comparison in file.nodes(ast.Compare):
        left = comparison.left
        if len(comparison.ops) != 1 or not isinstance(comparison.ops[0], (ast.In, ast.NotIn)):
            continue
        if isinstance(left, ast.Name) and _names_parameter(file, comparison, left.id):
            yield comparison, left.id


def _names_parameter(file: FileContext, comparison: ast.Compare, name: str) -> bool:
    for outer in file.ancestors(comparison):
        loops: list[ast.For | ast.comprehension] = [outer] if isinstance(outer, ast.For) else []
        if isinstance(outer, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            loops = list(outer.generators)
        for loop in loops:
            target = loop.target
            first = target.elts[0] if isinstance(target, ast.Tuple) and len(target.elts) == 2 else None
            if isinstance(first, ast.Name) and first.id == name:
                return _yields_parameters(file, loop.iter)
    return False


def _yields_parameters(file: FileContext, source: ast.expr) -> bool:
    if isinstance(source, ast.Name):
        definition = file.values.single_definition(source)
        if definition is None:
            return False
        source = definition
    if isinstance(source, ast.Call) and terminal_name(source.func) in ("list", "tuple", "sorted") and source.args:
        source = source.args[0]
    return isinstance(source, ast.Call) and terminal_name(source.func) == "named_parameters"


def _strings(file: FileContext, parts: ast.expr) -> list[str] | None:
    if isinstance(parts, ast.Name):
        definition = file.values.single_definition(parts)
        if definition is None:
            return None
        parts = definition
    if not isinstance(parts, (ast.List, ast.Tuple, ast.Set)):
        return None
    return [item.value for item in parts.elts if isinstance(item, ast.Constant) and isinstance(item.value, str)]


def _are_parts(parts: list[str]) -> bool:
    """Whether a list holds ends of names: `bias` beside others. `weight` and `bias` are whole names of a layer."""
    return "bias" in parts and len(parts) > 1 and not set(parts) <= {"weight", "bias"}
