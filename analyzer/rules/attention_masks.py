"""Attention masks whose rows line up with the wrong samples or heads.

This module must not judge what a mask hides, only which axis of it meets which axis of the scores.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.objects import argument, keyword, made_by
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import spread, terminal_name
from analyzer.tensor_ranks import is_pair_mask, rank_of

_HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"
_NET = (
    "class Net(nn.Module):\n    def __init__(self, dim=8, heads=2):\n        super().__init__()\n"
    "        self.heads = heads\n        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)\n\n"
    "    def forward(self, x, ok):\n"
)
_FIRST = 13
_MASKED = frozenset({"attn_mask", "src_mask", "tgt_mask", "memory_mask", "mask"})
_HEADS = re.compile(r"head|nhead|\bh\b", re.IGNORECASE)
_REPEATED_HEADS_FIRST = re.compile(r"->\s*\(\s*(h|heads?|n_?heads?)\s+(b|batch|bs|n)\s*\)")


class MaskTiledOverHeads(Rule):
    """A three-dimensional attention mask whose copies for the heads are in the wrong order."""

    id = "GP721"
    name = "mask-tiled-over-heads"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search", "batch_consistency")
    fix = FixSafety.UNSAFE
    triggers = ("attn_mask", "src_mask", "tgt_mask", "memory_mask", "MultiheadAttention", "Transformer")
    documentation = Documentation(
        what_it_does=(
            "Finds masks of one row of queries for each sample that are copied for the heads with `repeat(heads, 1, "
            "1)` "
            "(or `tile`, or `torch.cat([mask] * heads)`) before they go to `nn.MultiheadAttention` or a transformer "
            "layer."
        ),
        why_is_this_bad=(
            "The layer numbers its rows sample by sample: row `i * heads + h` belongs to head h of sample i. `repeat` "
            "lays out all samples once for every head instead, so samples are masked with each other's masks."
        ),
        faulty_example=_HEAD
        + _NET
        + "        hide = ~ok[:, None, :].expand(-1, x.shape[1], -1)\n        hide = hide.repeat(self.heads, 1, 1)\n"
        "        return self.attn(x, x, x, attn_mask=hide)[0]\n",
        right_example=_HEAD + _NET + "        hide = ~ok[:, None, :].expand(-1, x.shape[1], -1)\n"
        "        hide = hide.repeat_interleave(self.heads, dim=0)\n"
        "        return self.attn(x, x, x, attn_mask=hide)[0]\n",
        fix_safety="Unsafe: `repeat_interleave(heads, dim=0)` hides other places, as it is meant to.",
    )
    valid = (
        _HEAD + _NET + "        hide = ok.repeat_interleave(self.heads, dim=0)\n"
        "        return self.attn(x, x, x, attn_mask=hide)[0]\n",
        # one mask of two dimensions for everybody: the order does not matter
        _HEAD + _NET + "        hide = ok.repeat(x.shape[0] * self.heads, 1, 1)\n"
        "        return self.attn(x, x, x, attn_mask=hide)[0]\n",
        _HEAD + _NET + "        hide = torch.ones(4, 4).triu(1).bool().repeat(self.heads, 1, 1)\n"
        "        return self.attn(x, x, x, attn_mask=hide)[0]\n",
        _HEAD + _NET + "        hide = ok.unsqueeze(1).repeat(1, self.heads, 1, 1).flatten(0, 1)\n"
        "        return self.attn(x, x, x, attn_mask=hide)[0]\n",
        _HEAD + _NET + "        return self.attn(x, x, x, key_padding_mask=ok.repeat(self.heads, 1, 1))[0]\n",
        # another function's mask
        _HEAD + _NET + "        return other(x, attn_mask=ok.repeat(self.heads, 1, 1))\n",
    )
    invalid = (
        Invalid(documentation.faulty_example, (_FIRST + 1,)),
        Invalid(
            _HEAD + _NET + "        return self.attn(x, x, x, attn_mask=ok.repeat(self.attn.num_heads, 1, 1))[0]\n",
            (_FIRST,),
        ),
        Invalid(
            _HEAD + _NET + "        pair = ok[:, :, None] & ok[:, None, :]\n"
            "        hide = torch.cat([~pair] * self.heads, dim=0)\n"
            "        return self.attn(x, x, x, attn_mask=hide)[0]\n",
            (_FIRST + 1,),
        ),
        Invalid(
            _HEAD + _NET + "        hide = torch.tile(ok, (self.heads, 1, 1))\n"
            "        return self.attn(x, x, x, attn_mask=hide)[0]\n",
            (_FIRST,),
        ),
        Invalid(
            "import torch\nfrom einops import repeat\nfrom torch import nn\n\n\n"
            + _NET
            + "        hide = repeat(ok, 'b i j -> (h b) i j', h=self.heads)\n"
            "        return self.attn(x, x, x, attn_mask=hide)[0]\n",
            (_FIRST,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for call, mask in _masks_given(file):
            tiled = _origin(file, mask)
            if tiled is None:
                continue
            found = _tiled(file, tiled)
            if found is None:
                continue
            source, heads = found
            text = f"{file.operand_source(source)}.repeat_interleave({file.source(heads)}, dim=0)"
            yield Hit(
                tiled,
                "These copies of the mask lie head by head, but attention reads them sample by sample: samples get "
                "each other's masks. Use `repeat_interleave(heads, dim=0)`.",
                related=((call, "the mask is used here"),),
                fix=Rewrite(FixSafety.UNSAFE, (Replacement(tiled, text),)),
            )


def _masks_given(file: FileContext) -> Iterator[tuple[ast.Call, ast.expr]]:
    """The masks of calls of torch's attention and transformer layers."""
    for item in file.nodes(ast.keyword):
        call = file.parent(item)
        if item.arg in _MASKED and isinstance(call, ast.Call):
            name = made_by(file, call.func) or ""
            qualified = file.qualified_name(call.func) or ""
            layer = name.startswith("torch.nn.") and ("Transformer" in name or name.endswith("MultiheadAttention"))
            if layer or qualified == "torch.nn.functional.multi_head_attention_forward":
                yield call, item.value


def _origin(file: FileContext, mask: ast.expr) -> ast.expr | None:
    if isinstance(mask, ast.Name):
        return file.values.single_definition(mask)
    return mask


def _tiled(file: FileContext, expression: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """(the mask, the number of heads) of an expression that lays out a batch of masks once for each head."""
    if not isinstance(expression, ast.Call):
        return None
    operation = file.values.operation(expression)
    name = terminal_name(expression.func)
    if operation is None or operation.operand is None:
        return None
    found: tuple[ast.expr, ast.expr] | None = None
    if operation.qualified.startswith("einops.") and name == "repeat":
        pattern = operation.argument(0, "pattern")
        heads = next((k.value for k in expression.keywords if k.arg and _HEADS.search(k.arg)), None)
        text = pattern.value if isinstance(pattern, ast.Constant) else ""
        if heads is not None and isinstance(text, str) and _REPEATED_HEADS_FIRST.search(text):
            found = operation.operand, heads
    elif name in ("repeat", "tile"):
        counts = spread(operation.arguments)
        if len(counts) == 3 and all(isinstance(n, ast.Constant) and n.value == 1 for n in counts[1:]):
            found = operation.operand, counts[0]
    elif name in ("cat", "concat") and isinstance(operation.operand, ast.BinOp):
        found = _repeated_list(operation.operand)
    if found is None or not _is_number_of_heads(file, found[1]) or rank_of(file, found[0]) == 2:
        return None
    return found


def _repeated_list(product: ast.BinOp) -> tuple[ast.expr, ast.expr] | None:
    """`[mask] * heads`, in either order."""
    for one, count in ((product.left, product.right), (product.right, product.left)):
        if isinstance(product.op, ast.Mult) and isinstance(one, ast.List) and len(one.elts) == 1:
            return one.elts[0], count
    return None


def _is_number_of_heads(file: FileContext, count: ast.expr) -> bool:
    return isinstance(count, (ast.Name, ast.Attribute)) and _HEADS.search(file.source(count)) is not None


class MaskBatchMeetsHeads(Rule):
    """A mask of [batch, i, j] on scores of [batch, heads, i, j]."""

    id = "GP722"
    name = "mask-batch-meets-heads"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("finding_search", "batch_consistency")
    fix = FixSafety.UNSAFE
    triggers = ("masked_fill", "where", "scaled_dot_product_attention")
    documentation = Documentation(
        what_it_does=(
            "Finds masks of three axes, made for each sample (`ok[:, :, None] & ok[:, None, :]`), that are applied to "
            "attention scores of four axes, [batch, heads, queries, keys]."
        ),
        why_is_this_bad=(
            "Axes are matched from the right, so the batch of the mask meets the heads of the scores: with as many "
            "samples as heads every sample is masked with the masks of all, silently; with one sample it works; with "
            "any other number it raises."
        ),
        faulty_example=_HEAD + "def attend(q, k, ok, heads):\n"
        "    q, k = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k))\n"
        "    score = q @ k.transpose(-1, -2)\n    pair = ok[:, :, None] & ok[:, None, :]\n"
        "    return score.masked_fill(~pair, -1e4).softmax(-1)\n",
        right_example=_HEAD + "def attend(q, k, ok, heads):\n"
        "    q, k = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k))\n"
        "    score = q @ k.transpose(-1, -2)\n    pair = ok[:, :, None] & ok[:, None, :]\n"
        "    return score.masked_fill(~pair[:, None], -1e4).softmax(-1)\n",
        fix_safety="Unsafe: an axis for the heads is put into the mask, which hides other places, as it is meant to.",
    )
    valid = (
        documentation.right_example,
        # scores of three axes
        _HEAD + "def attend(q, k, ok):\n    b, n, d = q.shape\n    score = q.view(b, n, d) @ k.view(b, n, d).mT\n"
        "    pair = ok[:, :, None] & ok[:, None, :]\n    return score.masked_fill(~pair, -1e4).softmax(-1)\n",
        # one mask for all
        _HEAD + "def attend(q, k, n, heads):\n    q, k = (t.view(2, n, heads, -1).transpose(1, 2) for t in (q, k))\n"
        "    score = q @ k.mT\n    hide = torch.ones(n, n).triu(1).bool()\n"
        "    return score.masked_fill(hide, -1e4).softmax(-1)\n",
        _HEAD + "def attend(q, k, n, heads):\n    q, k = (t.view(2, n, heads, -1).transpose(1, 2) for t in (q, k))\n"
        "    score = q @ k.mT\n    hide = torch.ones(n, n).triu(1).bool()[None]\n"
        "    return score.masked_fill(hide, -1e4).softmax(-1)\n",
        _HEAD + "def attend(q, k, ok, n, heads):\n"
        "    q, k = (t.view(2, n, heads, -1).transpose(1, 2) for t in (q, k))\n"
        "    score = q @ k.mT\n    pair = (ok[:, :, None] & ok[:, None, :]).unsqueeze(1)\n"
        "    return score.masked_fill(~pair, -1e4).softmax(-1)\n",
        # nothing is known of the scores
        _HEAD + "def hide(score, ok):\n    pair = ok[:, :, None] & ok[:, None, :]\n"
        "    return score.masked_fill(~pair, -1e4)\n",
    )
    invalid = (
        Invalid(documentation.faulty_example, (10,)),
        Invalid(
            _HEAD + "class Net(nn.Module):\n    def split(self, t):\n"
            "        return t.unflatten(-1, (self.heads, -1)).transpose(1, 2)\n\n    def forward(self, x, ok):\n"
            "        q, k, v = map(self.split, self.qkv(x).chunk(3, dim=-1))\n"
            "        score = q @ k.transpose(-1, -2) / 8\n"
            "        pair = ok.unsqueeze(1) * ok.unsqueeze(2)\n"
            "        score = score.masked_fill(pair == 0, torch.finfo(score.dtype).min)\n"
            "        return score.softmax(dim=-1) @ v\n",
            (14,),
        ),
        Invalid(
            _HEAD + "def attend(q, k, v, ok, n, heads):\n"
            "    q, k, v = [t.view(2, n, heads, -1).transpose(1, 2) for t in (q, k, v)]\n"
            "    pair = ok[:, :, None] & ok[:, None, :]\n"
            "    return F.scaled_dot_product_attention(q, k, v, attn_mask=pair)\n",
            (9,),
        ),
        Invalid(
            "import torch\nfrom einops import rearrange\n\n\ndef attend(q, k, ok, heads):\n"
            "    q, k = map(lambda t: rearrange(t, 'b n (h d) -> b h n d', h=heads), (q, k))\n"
            "    score = torch.einsum('b h i d, b h j d -> b h i j', q, k)\n"
            "    pair = rearrange(ok, 'b i -> b i 1') & rearrange(ok, 'b j -> b () j')\n"
            "    return torch.where(pair, score, -1e4).softmax(-1)\n",
            (9,),
        ),
        Invalid(
            _HEAD + "def attend(x, n, heads, ok, w):\n"
            "    q, k, v = w(x).reshape(2, n, 3, heads, 4).permute(2, 0, 3, 1, 4)\n"
            "    pair = ok.unsqueeze(1) * ok.unsqueeze(2)\n"
            "    return (q @ k.mT).masked_fill(pair == 0, -1e4).softmax(-1) @ v\n",
            (9,),
        ),
        Invalid(
            _HEAD + "def attend(x, n, heads, lengths, w):\n    q = w(x).view(2, n, heads, -1).transpose(1, 2)\n"
            "    ok = torch.arange(n)[None, :] < lengths[:, None]\n    score = q @ q.mT\n"
            "    return score.masked_fill(~ok.unsqueeze(1), -1e4).softmax(-1)\n",
            (10,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for call, mask, scores in _applications(file):
            if is_pair_mask(file, mask) and rank_of(file, scores) == 4:
                yield Hit(
                    mask,
                    f"This mask has the axes [batch, i, j] and meets scores of [batch, heads, i, j]: its batch lines "
                    f"up with the heads. Put an axis in between: `{file.operand_source(mask)}[:, None]`.",
                    related=((scores, "these have an axis for the heads"), (call, "the mask is applied here")),
                    fix=Rewrite(FixSafety.UNSAFE, (Replacement(mask, f"{file.operand_source(mask)}[:, None]"),)),
                )


def _applications(file: FileContext) -> Iterator[tuple[ast.Call, ast.expr, ast.expr]]:
    """(the call, the mask, the scores) wherever scores are masked."""
    for call in file.calls("masked_fill", "masked_fill_"):
        operation = file.values.operation(call)
        mask = operation.argument(0, "mask") if operation is not None else None
        if operation is not None and operation.operand is not None and mask is not None:
            yield call, mask, operation.operand
    for call in file.calls("where"):
        if (file.qualified_name(call.func) or "") == "torch.where" and len(call.args) == 3:
            for branch in call.args[1:]:
                yield call, call.args[0], branch
    for call in file.calls("scaled_dot_product_attention"):
        mask = argument(call, 3, "attn_mask")
        query = argument(call, 0, "query")
        if mask is not None and query is not None and keyword(call, "enable_gqa") is None:
            yield call, mask, query
