"""What shapes a target may want: from its first layers, from its source, from names and annotations.

Layers and source are two independent routes: where both speak and agree with what ran, the harness is grade B.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from torch import nn

from gradproof_probe.harness.names import BATCH, IMAGE, SEQUENCE

Shape = tuple[int, ...]
SIDE: Final = (6, 8)  # not square: a swapped height and width shows


@dataclass(slots=True)
class LayerHint:
    """`shapes` that the first layer accepts, most usual first; `high` for an embedding (integer input)."""

    layer: str
    shapes: list[Shape]
    high: int | None = None


def layer_hints(module: nn.Module) -> list[LayerHint]:
    """One hint per layer that fixes a size, in the order of registration, at most six."""
    hints: list[LayerHint] = []
    for name, layer in module.named_modules():
        hint = _hint(layer)
        if hint is not None and hint[0]:
            hints.append(LayerHint(f"{name or 'self'}: {type(layer).__name__}", hint[0], hint[1]))
        if len(hints) == 6:
            break
    return hints


def _hint(layer: nn.Module) -> tuple[list[Shape], int | None] | None:
    if isinstance(layer, nn.Linear):
        size = layer.in_features
        return [(BATCH, SEQUENCE, size), (3, size), (BATCH, 4, 4, size)], None
    if isinstance(layer, nn.Conv1d):
        return [(BATCH, layer.in_channels, IMAGE)], None
    if isinstance(layer, nn.Conv2d):
        size = layer.in_channels
        return [(BATCH, size, *SIDE), (BATCH, size, IMAGE, IMAGE), (BATCH, size, 32, 32), (BATCH, size, 64, 64)], None
    if isinstance(layer, nn.ConvTranspose2d):
        return [(BATCH, layer.in_channels, *SIDE)], None
    if isinstance(layer, nn.Conv3d):
        size = layer.in_channels
        return [(BATCH, size, 4, *SIDE), (BATCH, size, 4, IMAGE, IMAGE), (BATCH, size, 8, 32, 32)], None
    if isinstance(layer, nn.Embedding):
        return [(BATCH, SEQUENCE), (BATCH,), (SEQUENCE,)], layer.num_embeddings
    if isinstance(layer, nn.LayerNorm):
        inner = tuple(layer.normalized_shape)
        return [(BATCH, SEQUENCE, *inner), (3, *inner)], None
    if isinstance(layer, nn.GroupNorm):
        return [(BATCH, layer.num_channels, *SIDE), (BATCH, layer.num_channels, SEQUENCE)], None
    if isinstance(layer, nn.BatchNorm1d):
        return [(4, layer.num_features), (BATCH, layer.num_features, SEQUENCE)], None
    if isinstance(layer, nn.BatchNorm2d):
        return [(BATCH, layer.num_features, *SIDE)], None
    if isinstance(layer, nn.RNNBase):
        return [(BATCH, SEQUENCE, layer.input_size)], None
    if isinstance(layer, nn.RNNCellBase):
        return [(3, layer.input_size)], None
    if isinstance(layer, nn.MultiheadAttention):
        return [(BATCH, SEQUENCE, layer.embed_dim)], None
    return None


def parameter_hints(module: nn.Module) -> list[Shape]:
    """Sizes from the module's own parameters and buffers, where no known layer says one: their last and first axes."""
    found: list[Shape] = []
    # The dicts themselves: `parameters` may be overridden, with a signature of its own.
    for tensor in [*module._parameters.values(), *module._buffers.values()][:4]:
        if tensor is None:
            continue
        for size in dict.fromkeys([*tensor.shape[-1:], *tensor.shape[:1]]):
            if size > 1:
                found += [(3, size), (BATCH, SEQUENCE, size), (BATCH, size, *SIDE)]
    return list(dict.fromkeys(found))


@dataclass(slots=True)
class SourceHint:
    """What the source of forward says of one parameter."""

    rank: int | None = None
    layer: str | None = None


def source_hints(function: Callable[..., Any]) -> dict[str, SourceHint]:
    """Ranks by parameter: `b, c, h, w = x.shape` unpacking, einops patterns, einsum terms."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return {}
    hints: dict[str, SourceHint] = {}
    for node in ast.walk(tree):
        for name, rank in _ranks(node):
            hint = hints.setdefault(name, SourceHint())
            hint.rank = hint.rank or rank
        for name, layer in _layer_calls(node):
            hint = hints.setdefault(name, SourceHint())
            hint.layer = hint.layer or layer
    return hints


def saved_names(function: type) -> frozenset[str]:
    """Names that an autograd.Function hands to `save_for_backward`, which takes tensors only."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return frozenset()
    return frozenset(
        argument.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "save_for_backward"
        for argument in node.args
        if isinstance(argument, ast.Name)
    )


def _layer_calls(node: ast.AST) -> Iterator[tuple[str, str]]:
    """`x` and `proj` in `self.proj(x)`: the layer that the argument goes into."""
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Name):
        owner = node.func
        if isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name) and owner.value.id == "self":
            yield node.args[0].id, owner.attr


def shapes_of_layer(module: nn.Module, name: str) -> LayerHint | None:
    """What the first sized layer inside `module.name` accepts."""
    inner = getattr(module, name, None)
    if not isinstance(inner, nn.Module):
        return None
    hints = layer_hints(inner)
    if not hints:
        return None
    return LayerHint(f"{name}.{hints[0].layer}".replace(".self:", ":"), hints[0].shapes, hints[0].high)


def _ranks(node: ast.AST) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Tuple):
        yield from _unpacking(node.targets[0], node.value)
    elif isinstance(node, ast.Call):
        yield from _pattern(node)


def _unpacking(targets: ast.Tuple, value: ast.expr) -> Iterator[tuple[str, int]]:
    if any(isinstance(item, ast.Starred) for item in targets.elts):
        return
    count = len(targets.elts)
    name = _shape_of(value)
    if name is not None:
        yield name, count
    elif isinstance(value, ast.Tuple):
        # `b, n, _, h = *x.shape, self.heads`: the starred shape fills what the others leave.
        starred = [item for item in value.elts if isinstance(item, ast.Starred)]
        if len(starred) == 1 and (name := _shape_of(starred[0].value)) is not None:
            yield name, count - (len(value.elts) - 1)


def _shape_of(value: ast.expr) -> str | None:
    """`x` in `x.shape` and `x.size()`."""
    if (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr == "size"
        and not value.args
    ):
        value = value.func
    elif not (isinstance(value, ast.Attribute) and value.attr == "shape"):
        return None
    inner = value.value
    return inner.id if isinstance(inner, ast.Name) else None


def _pattern(node: ast.Call) -> Iterator[tuple[str, int]]:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    texts = [item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    names = [item.id for item in node.args if isinstance(item, ast.Name)]
    if not texts or not names:
        return
    if called in ("rearrange", "reduce", "repeat") and "->" in texts[0]:
        rank = einops_rank(texts[0].partition("->")[0])
        if rank is not None:
            yield names[0], rank
    elif called == "einsum" and "->" in texts[0]:
        terms = texts[0].partition("->")[0].split(",")
        for name, term in zip(names, terms, strict=False):
            if "." not in term:
                yield name, len(term.split()) if " " in term.strip() else len(term.strip())


def einops_rank(pattern: str) -> int | None:
    """Axes of one side of an einops pattern; None with an ellipsis."""
    if "..." in pattern:
        return None
    return len(re.sub(r"\([^)]*\)", "g", pattern).split())


def random_shapes(rank: int, width: int) -> list[Shape]:
    """Usual shapes of a rank, with `width` where the features are."""
    known: dict[int, list[Shape]] = {
        0: [()],
        1: [(width,)],
        2: [(3, width)],
        3: [(BATCH, SEQUENCE, width)],
        4: [(BATCH, 3, *SIDE), (BATCH, 2, SEQUENCE, 4), (BATCH, width, *SIDE), (BATCH, 3, IMAGE, IMAGE)],
        5: [(BATCH, 3, 4, *SIDE), (BATCH, 3, 4, IMAGE, IMAGE)],
    }
    return known.get(rank, [(2,) * rank])
