"""Averages that count the padding: over the outputs of a masked layer, and over losses that a mask has set to zero.

This module must not judge masks that weigh instead of hide.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, Severity
from analyzer.objects import argument, keyword
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.syntax import FunctionNode, terminal_name

_HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"
_NET = (
    "class Net(nn.Module):\n    def __init__(self, layer):\n        super().__init__()\n"
    "        self.encoder = nn.TransformerEncoder(layer, 2)\n\n    def forward(self, x, blank):\n"
)
_LOSS = "def masked_loss(logits, target, mask):\n"
_FIRST, _LINE = 12, 7
_MASKS = frozenset({"src_key_padding_mask", "key_padding_mask", "attention_mask", "padding_mask"})
# A mask among as many optional arguments that are handed on under their own names is part of an interface.
_OPTIONS_OF_A_MODEL = 4
_HIDING = re.compile(r"mask|valid|(^|_)pad|is_pad", re.IGNORECASE)


class AverageOverPadding(Rule):
    """A mean over all positions, where a mask says that some of them are padding."""

    id = "GP740"
    name = "average-over-padding"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("batch_consistency", "accumulation_equivalence")
    triggers = (".mean(", "torch.mean(")
    documentation = Documentation(
        what_it_does=(
            "Finds `states.mean(dim=1)` of the output of a layer that was given a padding mask, and "
            "`(loss * mask).mean()` of an unreduced loss, where the function divides by no sum of the mask. Where an "
            "optional mask is handed on to a model among its other options, it is a note."
        ),
        why_is_this_bad=(
            "The mean divides by the number of all positions and, for states, adds up those of the padding: what a "
            "sample yields depends on the longest sequence of its batch, and batches with much padding count less."
        ),
        faulty_example=_HEAD
        + _NET
        + "        h = self.encoder(x, src_key_padding_mask=blank)\n        return h.mean(dim=1)\n",
        right_example=_HEAD + _NET + "        h = self.encoder(x, src_key_padding_mask=blank)\n"
        "        keep = (~blank).unsqueeze(-1).to(h.dtype)\n"
        "        return (h * keep).sum(dim=1) / keep.sum(dim=1).clamp(min=1)\n",
        fix_safety="No automatic fix: the shape of the mask, and what an empty sequence gives, are to be decided.",
    )
    valid = (
        documentation.right_example,
        _HEAD + _NET + "        h = self.encoder(x, src_key_padding_mask=None)\n        return h.mean(dim=1)\n",
        _HEAD + _NET + "        h = self.encoder(x)\n        return h.mean(dim=1)\n",
        _HEAD + _NET + "        h = self.encoder(x, src_key_padding_mask=blank)\n        if blank is None:\n"
        "            return h.mean(dim=1)\n        return h[:, 0]\n",
        _HEAD + _NET + "        h = self.encoder(x, src_key_padding_mask=blank)\n        return h.mean(dim=-1)\n",
        _HEAD + _NET + "        h = self.encoder(x, src_key_padding_mask=blank)\n"
        "        h = h.masked_fill(blank.unsqueeze(-1), 0)\n        return h.mean(dim=1)\n",
        _HEAD + _LOSS + "    raw = F.mse_loss(logits, target, reduction='none') * mask\n"
        "    return raw.mean() / mask.mean()\n",
        _HEAD + _LOSS + "    raw = F.mse_loss(logits, target, reduction='none')\n"
        "    return (raw * mask).sum() / mask.sum()\n",
        _HEAD + "def weighted(logits, target, weight):\n    raw = F.mse_loss(logits, target, reduction='none')\n"
        "    return (raw * weight).mean()\n",
        _HEAD + _LOSS + "    mask = mask / mask.mean()\n    raw = F.mse_loss(logits, target, reduction='none')\n"
        "    return (raw * mask).mean()\n",
        _HEAD + _LOSS + "    return (logits * mask).mean()\n",
    )
    invalid = (
        Invalid(documentation.faulty_example, (_FIRST + 1,)),
        Invalid(
            _HEAD + _NET + "        return self.encoder(x, src_key_padding_mask=blank).mean(1)\n",
            (_FIRST,),
        ),
        Invalid(
            _HEAD + "def embed(model, ids, mask):\n    out = model(ids, attention_mask=mask)\n"
            "    return out.last_hidden_state.mean(dim=1)\n",
            (8,),
        ),
        Invalid(
            _HEAD + _LOSS + "    raw = F.mse_loss(logits, target, reduction='none')\n    return (raw * mask).mean()\n",
            (_LINE + 1,),
        ),
        Invalid(
            _HEAD + "def loss(logits, target, valid):\n"
            "    raw = F.cross_entropy(logits, target, reduction='none')\n    keep = valid.to(raw.dtype)\n"
            "    return torch.mean(raw * keep)\n",
            (9,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for call in file.calls("mean"):
            operand, function = _averaged(file, call), file.enclosing_function(call)
            if operand is None or function is None:
                continue
            masked = _masked_layer(file, operand) if _is_over_steps(file, call) else None
            if masked is not None and not _depends_on(file, call, masked):
                yield Hit(
                    call,
                    "This averages over all positions, the padding that the mask hides from the layer included: what "
                    "a sample yields depends on its batch. Average over the real positions only.",
                    severity=Severity.NOTE if _hands_on_optional(file, function, masked) else None,
                    related=((masked, "the mask is given here"),),
                )
            elif _is_over_all(file, call) and _is_masked_loss(file, function, operand):
                yield Hit(
                    call,
                    "The mask sets the loss of the padding to zero, but this divides by the number of all positions: "
                    "batches with much padding count less. Divide the sum by the sum of the mask.",
                )


def _hands_on_optional(file: FileContext, function: FunctionNode, mask: ast.expr) -> bool:
    """Whether an optional mask is only handed on, with the other options of a model: most callers give none."""
    call = next((outer for outer in file.ancestors(mask) if isinstance(outer, ast.Call)), None)
    if call is None or not isinstance(mask, ast.Name):
        return False
    given = function.args
    places = [*given.posonlyargs, *given.args]
    optional = {argument.arg for argument in places[len(places) - len(given.defaults) :]}
    optional |= {a.arg for a, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is not None}
    handed_on = {
        passed.arg
        for passed in call.keywords
        if isinstance(passed.value, ast.Name) and passed.value.id == passed.arg and passed.arg in optional
    }
    return mask.id in handed_on and len(handed_on) >= _OPTIONS_OF_A_MODEL


def _depends_on(file: FileContext, call: ast.Call, mask: ast.expr) -> bool:
    """Whether the average is one of two ways, by whether there is a mask."""
    name = terminal_name(mask) or file.source(mask)
    return any(
        isinstance(outer, (ast.If, ast.IfExp)) and re.search(rf"\b{re.escape(name)}\b", file.source(outer.test))
        for outer in file.ancestors(call)
    )


def _averaged(file: FileContext, call: ast.Call) -> ast.expr | None:
    qualified = file.qualified_name(call.func)
    if qualified is not None:
        return call.args[0] if qualified == "torch.mean" and call.args else None
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _axis(file: FileContext, call: ast.Call) -> ast.expr | None:
    return argument(call, 0 if file.qualified_name(call.func) is None else 1, "dim", "axis")


def _is_over_steps(file: FileContext, call: ast.Call) -> bool:
    axis = _axis(file, call)
    return axis is not None and ast.unparse(axis) in ("1", "-2")


def _is_over_all(file: FileContext, call: ast.Call) -> bool:
    return _axis(file, call) is None and not call.keywords


def _masked_layer(file: FileContext, states: ast.expr) -> ast.expr | None:
    """The mask of the call that gave these states, through a name and an attribute or index of the result."""
    for _ in range(4):
        if isinstance(states, ast.Name):
            bindings = file.values.definitions(states)
            statement = bindings[0].statement if len(bindings) == 1 else None
            if not isinstance(statement, ast.Assign):
                return None
            states = statement.value
        elif isinstance(states, (ast.Subscript, ast.Attribute)) and _is_result(states):
            states = states.value
        else:
            break
    if not isinstance(states, ast.Call):
        return None
    mask = keyword(states, *_MASKS)
    return mask if mask is not None and not isinstance(mask, ast.Constant) else None


def _is_result(part: ast.Subscript | ast.Attribute) -> bool:
    """`out[0]` and `out.last_hidden_state`."""
    return isinstance(part.slice, ast.Constant) if isinstance(part, ast.Subscript) else part.attr == "last_hidden_state"


def _is_masked_loss(file: FileContext, function: FunctionNode, operand: ast.expr) -> bool:
    """Whether an expression is an unreduced loss times a mask that nothing in the function sums or averages."""
    if isinstance(operand, ast.Name):
        operand = file.values.single_definition(operand) or operand
    if not isinstance(operand, ast.BinOp) or not isinstance(operand.op, ast.Mult):
        return False
    for loss, mask in ((operand.left, operand.right), (operand.right, operand.left)):
        if _is_unreduced(file, loss) and isinstance(mask, ast.Name) and any(_hides(file, mask)):
            text = file.source(function)
            return not re.search(rf"\b{re.escape(mask.id)}\w*\.(float\(\)\.)?(sum|mean)\(|/", text)
    return False


def _is_unreduced(file: FileContext, loss: ast.expr) -> bool:
    if isinstance(loss, ast.Name):
        loss = file.values.single_definition(loss) or loss
    reduction = keyword(loss, "reduction") if isinstance(loss, ast.Call) else None
    return isinstance(reduction, ast.Constant) and reduction.value == "none"


def _hides(file: FileContext, mask: ast.Name) -> Iterator[bool]:
    """Whether the name of a mask, or of what it was converted from, says that it hides."""
    yield _HIDING.search(mask.id) is not None
    definition = file.values.single_definition(mask)
    if isinstance(definition, ast.Call) and terminal_name(definition.func) in ("to", "float", "type_as", "type"):
        receiver = definition.func.value if isinstance(definition.func, ast.Attribute) else None
        yield isinstance(receiver, ast.Name) and _HIDING.search(receiver.id) is not None
