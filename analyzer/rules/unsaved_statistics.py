"""Averages that a module learns over many batches and does not save.

This module must not judge caches and states of one sequence, which are rightly left out of a checkpoint.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.forward_code import own_attribute
from analyzer.objects import is_false, keyword
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule

_HEAD = "import torch\nimport torch.nn as nn\n\n\n"
_NET = (
    "class Center(nn.Module):\n    def __init__(self, n, momentum=0.9):\n        super().__init__()\n"
    "        self.momentum = momentum\n        self.register_buffer('center', torch.zeros(n), persistent=False)\n\n"
    "    @torch.no_grad()\n    def update(self, x):\n"
)
_LINE = 9


class StatisticNotSaved(Rule):
    """A moving average in a buffer with `persistent=False`."""

    id = "GP625"
    name = "statistic-not-saved"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search", "state_dict")
    fix = FixSafety.UNSAFE
    triggers = ("persistent",)
    documentation = Documentation(
        what_it_does=(
            "Finds buffers registered with `persistent=False` that the module updates as a moving average "
            "(`self.mean.mul_(m).add_(…)`, `self.mean.lerp_(…)`, `self.mean = m * self.mean + …`)."
        ),
        why_is_this_bad=(
            "A buffer that is not persistent is left out of `state_dict()`. An average over many batches can't be "
            "computed again after loading: training resumes, and evaluation runs, with the initial value."
        ),
        faulty_example=_HEAD + _NET + "        self.center.mul_(self.momentum).add_(x.mean(0), alpha=0.1)\n",
        right_example=_HEAD
        + _NET.replace(", persistent=False", "")
        + "        self.center.mul_(self.momentum).add_(x.mean(0), alpha=0.1)\n",
        fix_safety="Unsafe: the buffer is saved from now on, and older state dicts lack it.",
    )
    valid = (
        documentation.right_example,
        # a table, a cache, a state that begins anew
        _HEAD + _NET + "        return x - self.center\n",
        _HEAD + _NET + "        self.center.copy_(x[0])\n",
        _HEAD + _NET + "        self.center = self.center[:2]\n",
        _HEAD + _NET + "        self.center.zero_()\n        self.center.add_(x.sum(0))\n",
        # the membrane of a neuron, over the steps of one input
        _HEAD + _NET + "        self.center = 0.9 * self.center + x\n        return self.center\n\n"
        "    def reset(self):\n        self.center.zero_()\n",
    )
    invalid = (
        Invalid(documentation.faulty_example, (_LINE,)),
        Invalid(_HEAD + _NET + "        self.center.lerp_(x.mean(0), 1 - self.momentum)\n", (_LINE,)),
        Invalid(_HEAD + _NET + "        self.center = self.center * self.momentum + x.mean(0) * 0.1\n", (_LINE,)),
        Invalid(_HEAD + _NET + "        self.center.copy_(0.9 * self.center + 0.1 * x.mean(0))\n", (_LINE,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for call in file.calls("register_buffer"):
            kept = keyword(call, "persistent")
            name = call.args[0] if call.args else None
            owner = file.enclosing_class(call)
            if owner is None or not is_false(kept) or kept is None:
                continue
            if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
                continue
            moved = next(_averages(file, owner, name.value), None)
            if moved is not None and not _begins_anew(owner):
                yield Hit(
                    call,
                    f"`{name.value}` is a moving average, and `persistent=False` leaves it out of `state_dict()`: "
                    f"after loading it begins at its initial value again. Save it.",
                    related=((moved, "averaged over the batches here"),),
                    fix=Rewrite(FixSafety.UNSAFE, (Replacement(kept, "True"),)),
                )


def _begins_anew(owner: ast.ClassDef) -> bool:
    return any(isinstance(item, ast.FunctionDef) and "reset" in item.name for item in owner.body)


def _averages(file: FileContext, owner: ast.ClassDef, name: str) -> Iterator[ast.AST]:
    """Where a class moves a buffer a step towards something new."""
    for attribute in file.nodes_in(owner, ast.Attribute):
        if own_attribute(attribute) != name:
            continue
        parent = file.parent(attribute)
        if isinstance(parent, ast.Attribute):
            call = file.parent(parent)
            if isinstance(call, ast.Call) and call.func is parent and _is_average(file, call, parent.attr, name):
                yield call
        elif isinstance(attribute.ctx, ast.Store) and isinstance(parent, ast.Assign) and _mixes(parent.value, name):
            yield parent


def _is_average(file: FileContext, call: ast.Call, method: str, name: str) -> bool:
    following = file.parent(call)
    added = method == "mul_" and isinstance(following, ast.Attribute) and following.attr == "add_"
    return added or method == "lerp_" or (method == "copy_" and bool(call.args) and _mixes(call.args[0], name))


def _mixes(value: ast.expr, name: str) -> bool:
    """`m * self.name + k * new`: a share of the old value and a share of a new one."""
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return False
    shares = [
        side for side in (value.left, value.right) if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mult)
    ]
    return len(shares) == 2 and any(
        own_attribute(part) == name for share in shares for part in (share.left, share.right)
    )
