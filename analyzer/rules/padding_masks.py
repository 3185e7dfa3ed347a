"""Padding masks with the opposite meaning: torch's attention ignores what is True, or keeps it, by the argument.

This module must not judge masks whose origin the function does not show.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.objects import argument, made_by
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import terminal_name

_HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"
_NET = (
    "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)\n\n"
    "    def forward(self, x, tokens, lengths, pad):\n"
)
_FIRST = 12
_ATTENTION = "torch.nn.MultiheadAttention"
_PADDING = re.compile(r"(^|_)pad", re.IGNORECASE)
_IGNORED = frozenset({"key_padding_mask", "src_key_padding_mask", "tgt_key_padding_mask", "memory_key_padding_mask"})


class InvertedPaddingMask(Rule):
    """A mask of the real tokens where torch wants the padding, or the other way round."""

    id = "GP729"
    name = "inverted-padding-mask"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("batch_consistency",)
    fix = FixSafety.UNSAFE
    triggers = ("padding_mask", "scaled_dot_product_attention", "MultiheadAttention")
    documentation = Documentation(
        what_it_does=(
            "Finds `key_padding_mask=(tokens != pad)` and `key_padding_mask=(arange < lengths)` in calls of torch's "
            "attention and transformer layers, `attn_mask=(tokens == pad)` for `scaled_dot_product_attention`, and "
            "boolean triangles that hide the past instead of the future."
        ),
        why_is_this_bad=(
            "`key_padding_mask` is True where a key is to be ignored; the boolean mask of "
            "`scaled_dot_product_attention` is True where it takes part. The other way round the model looks at the "
            "padding only, and what a sequence yields depends on how far its batch was padded."
        ),
        faulty_example=_HEAD + _NET + "        return self.attn(x, x, x, key_padding_mask=tokens != pad)[0]\n",
        right_example=_HEAD + _NET + "        return self.attn(x, x, x, key_padding_mask=tokens == pad)[0]\n",
        fix_safety="Unsafe: the mask is turned round, which changes the values, as it is meant to.",
    )
    valid = (
        documentation.right_example,
        _HEAD + _NET + "        return self.attn(x, x, x, key_padding_mask=~(tokens != pad))[0]\n",
        _HEAD + _NET + "        hide = torch.arange(9)[None] >= lengths[:, None]\n"
        "        return self.attn(x, x, x, key_padding_mask=hide)[0]\n",
        _HEAD + _NET + "        return F.scaled_dot_product_attention(x, x, x, attn_mask=(tokens != pad)[:, None])\n",
        _HEAD + _NET + "        seen = torch.ones(9, 9, dtype=torch.bool).tril()\n"
        "        return F.scaled_dot_product_attention(x, x, x, attn_mask=seen)\n",
        _HEAD + _NET + "        future = torch.triu(torch.ones(9, 9), diagonal=1).bool()\n"
        "        return self.attn(x, x, x, attn_mask=future)[0]\n",
        # added to the scores
        _HEAD + _NET + "        future = torch.full((9, 9), -1e4).triu(1)\n"
        "        return F.scaled_dot_product_attention(x, x, x, attn_mask=future)\n",
        # nothing is known of the mask, or of the layer
        _HEAD + _NET + "        return self.attn(x, x, x, key_padding_mask=tokens)[0]\n",
        _HEAD + _NET + "        return other(x, key_padding_mask=tokens != pad)\n",
        _HEAD + _NET + "        return self.attn(x, x, x, key_padding_mask=tokens != lengths)[0]\n",
    )
    invalid = (
        Invalid(documentation.faulty_example, (_FIRST,)),
        Invalid(
            _HEAD + _NET + "        ok = torch.arange(9)[None, :] < lengths[:, None]\n"
            "        return self.attn(x, x, x, key_padding_mask=ok)[0]\n",
            (_FIRST + 1,),
        ),
        Invalid(
            _HEAD + _NET + "        pad_mask = tokens.ne(self.padding_idx)\n"
            "        return self.attn(x, x, x, key_padding_mask=pad_mask)[0]\n",
            (_FIRST + 1,),
        ),
        Invalid(
            _HEAD + _NET + "        return F.scaled_dot_product_attention(x, x, x, (tokens == pad)[:, None, None])\n",
            (_FIRST,),
        ),
        Invalid(
            _HEAD + _NET + "        here = torch.arange(9)[None, :] < tokens[:, None]\n"
            "        return self.attn(x, x, x, key_padding_mask=here)[0]\n",
            (_FIRST + 1,),
        ),
        Invalid(
            _HEAD + _NET + "        future = torch.ones(9, 9, dtype=torch.bool).triu(1)\n"
            "        return F.scaled_dot_product_attention(x, x, x, attn_mask=future)\n",
            (_FIRST + 1,),
        ),
        Invalid(
            _HEAD + _NET + "        seen = torch.tril(torch.ones(9, 9, dtype=torch.bool))\n"
            "        return self.attn(x, x, x, attn_mask=seen)[0]\n",
            (_FIRST + 1,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for mask, hides in _masks(file):
            found = _selection(file, mask)
            if found is None or found[1] is hides:
                continue
            source, _ = found
            meaning = "is True where a key is to be ignored" if hides else "is True where a key takes part"
            selects = "what is to be hidden" if found[1] else "what is to be seen"
            yield Hit(
                mask,
                f"The mask {meaning}, but this one is True for {selects}: attention works on the wrong places. Turn "
                f"it round.",
                related=((source, "the mask is made here"),) if source is not mask else (),
                fix=Rewrite(FixSafety.UNSAFE, (Replacement(mask, f"~{file.operand_source(mask)}"),)),
            )


def _masks(file: FileContext) -> Iterator[tuple[ast.expr, bool]]:
    """(a mask, whether it is True for what is ignored) of calls of torch's own attention."""
    for item in file.nodes(ast.keyword):
        call = file.parent(item)
        if item.arg in _IGNORED and isinstance(call, ast.Call):
            name = made_by(file, call.func) or ""
            if name.startswith("torch.nn.") and ("Transformer" in name or name.endswith("MultiheadAttention")):
                yield item.value, True
        elif item.arg == "attn_mask" and isinstance(call, ast.Call) and made_by(file, call.func) == _ATTENTION:
            yield item.value, True
    for call in file.calls("scaled_dot_product_attention"):
        mask = argument(call, 3, "attn_mask")
        if mask is not None and (file.qualified_name(call.func) or "").startswith("torch."):
            yield mask, False


def _selection(file: FileContext, mask: ast.expr) -> tuple[ast.expr, bool] | None:
    """(where a mask is made, whether it is True for the padding); None when the function does not show it."""
    turned = False
    for _ in range(8):
        if isinstance(mask, ast.Name):
            definition = file.values.single_definition(mask)
            if definition is None:
                return None
            mask = definition
        elif isinstance(mask, ast.UnaryOp) and isinstance(mask.op, ast.Invert):
            mask, turned = mask.operand, not turned
        elif isinstance(mask, ast.Subscript):
            mask = mask.value
        elif isinstance(mask, ast.Call) and _is_conversion(mask):
            mask = mask.func.value  # type: ignore[attr-defined]
        else:
            break
    padding = _is_padding(file, mask)
    return (mask, padding is not turned) if padding is not None else None


def _is_conversion(call: ast.Call) -> bool:
    names = ("bool", "to", "unsqueeze", "expand", "repeat_interleave", "contiguous", "view")
    return isinstance(call.func, ast.Attribute) and call.func.attr in names


def _is_padding(file: FileContext, made: ast.expr) -> bool | None:
    """Whether a mask is True for what is to be hidden (`tokens == pad`, `arange >= lengths`), or for the rest."""
    if isinstance(made, ast.Call):
        return _is_called_padding(file, made)
    if not isinstance(made, ast.Compare) or len(made.ops) != 1:
        return None
    operator, left, right = made.ops[0], made.left, made.comparators[0]
    if isinstance(operator, (ast.Eq, ast.NotEq)) and (_names_padding(right) or _names_padding(left)):
        return isinstance(operator, ast.Eq)
    if isinstance(operator, (ast.Lt, ast.LtE)) and _is_lengths(file, right) and _is_range(file, left):
        return False
    if isinstance(operator, (ast.Gt, ast.GtE)) and _is_lengths(file, right) and _is_range(file, left):
        return True
    return None


def _is_called_padding(file: FileContext, made: ast.Call) -> bool | None:
    name = terminal_name(made.func)
    if name in ("triu", "tril"):
        return _hides_future(file, made)
    if name in ("eq", "ne") and len(made.args) == 1 and _names_padding(made.args[0]):
        return name == "eq"
    return None


def _hides_future(file: FileContext, made: ast.Call) -> bool | None:
    """True for the boolean upper triangle above the diagonal (the future), False for the lower one with it."""
    is_method = isinstance(made.func, ast.Attribute) and file.qualified_name(made.func) is None
    diagonal = argument(made, 0 if is_method else 1, "diagonal")
    above = isinstance(diagonal, ast.Constant) and diagonal.value == 1
    if "bool" not in file.source(made):
        return None
    if terminal_name(made.func) == "triu":
        return True if above else None
    return False if diagonal is None else None


def _names_padding(side: ast.expr) -> bool:
    return isinstance(side, (ast.Name, ast.Attribute)) and _PADDING.search(terminal_name(side) or "") is not None


def _is_lengths(file: FileContext, side: ast.expr) -> bool:
    """A name that speaks of lengths, or one number for each sample, made a column: `counts[:, None]`."""
    if re.search(r"len", file.source(side)) is not None:
        return True
    if isinstance(side, ast.Call) and isinstance(side.func, ast.Attribute) and side.func.attr == "unsqueeze":
        return isinstance(side.func.value, ast.Name)
    if not isinstance(side, ast.Subscript) or not isinstance(side.value, ast.Name):
        return False
    index = side.slice
    return isinstance(index, ast.Tuple) and any(isinstance(i, ast.Constant) and i.value is None for i in index.elts)


def _is_range(file: FileContext, side: ast.expr) -> bool:
    """Whether a side is `torch.arange(n)`, also through a variable and with axes added."""
    while isinstance(side, ast.Subscript):
        side = side.value
    if isinstance(side, ast.Name):
        definition = file.values.single_definition(side)
        return definition is not None and "arange" in file.source(definition)
    return "arange" in file.source(side)
