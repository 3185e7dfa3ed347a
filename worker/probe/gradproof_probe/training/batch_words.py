"""What names and comments say of a batch: that an axis is one, or that samples are meant to meet.

Text alone; nothing is run here.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from gradproof_probe.gradients.attribution import Place

# Modules in which the samples of a batch, or the rows of a matrix, are meant to know each other.
BY_DESIGN: Final = re.compile(
    r"loss|criterion|metric|contrast|pair|triplet|batch_?(std|stat|norm|mean|var|discrim|att|mix)|minibatch|whiten"
    r"|decorrel|sinkhorn|moco|simclr|byol|dino|barlow|vicreg|nt_?xent|info_?nce|mix_?up|cut_?mix|graph|gnn|gcn|(^|_)gat(_|$)"
    r"|node|edge|(^|_)set(_|$)|point|cloud|bank|queue|sort|rank|moe|expert|rout|capacity|cluster|quanti|codebook|kernel"
    r"|transform(?!er)|augment|penalt|regulari|visual|ensembl|ghost|segment|frame|clip|views|crop|group|shift"
    r"|center(ing)?|centre|standardi[sz]|calibrat|episod|proto|support|query_?set|few_?shot|neighb|knn|memory|adjacen"
    r"|integral|correlat|covarian|gram|affin|similar|distance|cdist|dist_?mat|bag|instance_?(learn|mil)|(^|_)mil(_|$)|retriev",
    re.IGNORECASE,
)
_BATCH: Final = re.compile(r"b|bs|bsz|nb|batch|batch_?size|n_?batch(es)?|num_?batch|batches|minibatch", re.IGNORECASE)
_SAID: Final = re.compile(
    r"[\[(]\s*(b|bs|bsz|batch|batch_?size|n_batch)\s*[,x*]|\bb\s*[x*,]\s*(n|t|l|c|s|d|h|seq)\b|\bbs\s*x\b"
    r"|batch[ _-]first|\(\s*n\s*,\s*c\s*,",
    re.IGNORECASE,
)
_OVER_BATCH: Final = re.compile(
    r"\b(over|across|along|within) (the )?(whole |entire |current )?(mini-?)?batch\b|batch[- ]?wise|in-batch",
    re.IGNORECASE,
)
_EINOPS: Final = re.compile(r"^\s*b\s")


def says_batch_first(definitions: Iterable[Any]) -> str:
    """Where classes or functions say that the first axis of their input is a batch; empty if they don't."""
    for definition in definitions:
        try:
            text = textwrap.dedent(inspect.getsource(definition))
            tree = ast.parse(text)
        except (OSError, TypeError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            said = _says(node)
            if said:
                return said
        said_aside = [line.partition("#")[2] for line in text.splitlines() if "#" in line]
        said_aside += [inspect.getdoc(definition) or ""] if definition.__doc__ else []
        match = next((found for found in map(_SAID.search, said_aside) if found is not None), None)
        if match is not None:
            return f"a comment speaks of {match[0].strip()!r}"
    return ""


def over_batch(definitions: Iterable[Any]) -> bool:
    """Whether what is said beside the code tells that it computes over the batch."""
    return any(_OVER_BATCH.search(words_beside(definition)) for definition in definitions)


def words_beside(definition: Any) -> str:
    """The docstring of a function or class, and its comments."""
    try:
        lines = inspect.getsourcelines(definition)[0]
    except (OSError, TypeError):
        lines = []
    return "\n".join([inspect.getdoc(definition) or "", *(line.partition("#")[2] for line in lines)])


def meant(texts: Iterable[str]) -> str:
    """The word that says that samples are to meet."""
    for text in texts:
        # CamelCase apart, so that words begin where they do.
        match = BY_DESIGN.search(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text))
        if match is not None:
            return match[0].strip("_")
    return ""


def line_of(place: Place | None, source_root: Path) -> str:
    if place is None:
        return ""
    try:
        lines = (source_root / place.path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return ""
    return lines[place.line - 1] if 0 < place.line <= len(lines) else ""


def _says(node: ast.AST) -> str:
    if isinstance(node, ast.Assign):
        target = node.targets[0]
        value = node.value
        if isinstance(target, ast.Tuple) and len(target.elts) > 1 and _is_shape(value):
            return _named(target.elts[0])
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = zip(target.elts, value.elts, strict=False)
            return next((_named(name) for name, item in pairs if _is_first_size(item) and _named(name)), "")
        return _named(target) if _is_first_size(value) else ""
    if isinstance(node, ast.Call):
        names = [keyword for keyword in node.keywords if keyword.arg == "batch_first"]
        if any(isinstance(item.value, ast.Constant) and item.value.value is True for item in names):
            return "batch_first=True"
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        patterns = [item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
        if called in ("rearrange", "einsum", "reduce", "Rearrange", "repeat") and any(map(_EINOPS.search, patterns)):
            return f"the pattern {patterns[0]!r}"
    return ""


def _named(node: ast.expr) -> str:
    return f"the name {node.id!r} for its size" if isinstance(node, ast.Name) and _BATCH.fullmatch(node.id) else ""


def _is_shape(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "size" and not node.args
    return isinstance(node, ast.Attribute) and node.attr == "shape"


def _is_first_size(node: ast.expr) -> bool:
    """`x.shape[0]`, `x.size(0)`, `len(x)`."""
    if isinstance(node, ast.Subscript):
        return _is_shape(node.value) and isinstance(node.slice, ast.Constant) and node.slice.value == 0
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id == "len" and len(node.args) == 1
    zero = len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
    return isinstance(node.func, ast.Attribute) and node.func.attr == "size" and zero
