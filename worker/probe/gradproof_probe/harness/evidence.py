"""What speaks of an input's rank, sizes and kind: the routes by which a harness comes to grade B.

Each route looks at another thing: the layers of the built module, the code of forward, what is written about it for
people, and what the call itself refuses. Two of them that agree are no guess any more. Nothing here runs the target;
`validation` adds what running shows.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import nn

from gradproof_probe.harness.any_rank import integer_of, source_tree
from gradproof_probe.harness.constructors import parameters_of
from gradproof_probe.harness.demand import demands
from gradproof_probe.harness.docstrings import crossed_words
from gradproof_probe.harness.rewriting import WrittenTensor
from gradproof_probe.harness.shapes import source_hints
from gradproof_probe.importing import Resolved

Route = Literal["layers", "source", "words", "annotation", "parent", "demand", "refusal", "free"]

# What a route is called in a sentence for a person.
ROUTE_WORDS: Final[dict[Route, str]] = {
    "layers": "the layer that it goes into",
    "source": "the code of the call",
    "words": "its documentation",
    "annotation": "its annotation",
    "parent": "the call by another target",
    "demand": "a size that an error asked for",
    "refusal": "no other number of axes runs",
    "free": "any number of axes runs",
}


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one route says of one argument.

    `ranks`: the numbers of axes that it allows (none: it does not say), `least_rank` at least so many. `sizes`: by
    axis, from the end where negative. `sure`: it speaks of this very argument, so that it may also contradict.
    """

    route: Route
    argument: str
    ranks: tuple[int, ...] = ()
    least_rank: int = 0
    sizes: tuple[tuple[int, int], ...] = ()
    kind: Literal["float", "int"] | None = None
    sure: bool = True
    said: str = ""

    @property
    def fixes_rank(self) -> bool:
        return bool(self.ranks)

    def allows(self, tensor: WrittenTensor) -> bool:
        """Whether what ran is as this says."""
        rank = len(tensor.shape)
        if (self.ranks and rank not in self.ranks) or rank < self.least_rank:
            return False
        if self.kind is not None and (self.kind == "float") != tensor.is_float:
            return False
        return all(-rank <= axis < rank and tensor.shape[axis] == size for axis, size in self.sizes)


def read_evidence(
    resolved: Resolved,
    instance: nn.Module | None,
    function: Callable[..., Any],
    parameters: list[inspect.Parameter],
) -> list[Evidence]:
    """What can be read about the arguments, from every route that needs no run."""
    tree = source_tree(function)
    names = [parameter.name for parameter in parameters]
    found = list(_source(function, tree, names))
    found += _followed(function, instance, names, frozenset(item.argument for item in found if item.fixes_rank))
    if instance is not None:
        found += _layers(instance, tree, parameters)
    for parameter in parameters:
        found += _annotation(parameter)
    texts = [inspect.getdoc(function) or "", inspect.getdoc(resolved.value) or ""]
    if isinstance(resolved.value, type):
        texts.append(inspect.getdoc(vars(resolved.value).get("__init__")) or "")
    for text in dict.fromkeys(texts):
        found += _words(text, parameters)
    found += _comments(function, parameters)
    return found


def called_function(resolved: Resolved, instance: nn.Module | None) -> Callable[..., Any]:
    """The function that the inputs go to."""
    if instance is not None:
        return type(instance).forward
    is_function = resolved.target.kind == "autograd_function"
    function: Callable[..., Any] = resolved.value.forward if is_function else resolved.value
    return function


def called_parameters(resolved: Resolved, function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Its parameters without `self` and `ctx`, by the position of the inputs."""
    if resolved.target.kind == "module":
        return parameters_of(function)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
    # `setup_context` leaves forward without ctx.
    is_apart = resolved.target.kind == "autograd_function" and not _has_setup_context(resolved.value)
    return parameters[1:] if is_apart else parameters


def _has_setup_context(function: Any) -> bool:
    return getattr(function, "setup_context", None) is not torch.autograd.Function.setup_context


# ------------------------------------------------------------------------------------------------------------ layers


def _layers(instance: nn.Module, tree: ast.AST | None, parameters: list[inspect.Parameter]) -> Iterator[Evidence]:
    """The layer that an argument is handed to; for the first argument else the first layer that fixes a size."""
    traced = dict(_layer_calls(tree))
    for parameter in parameters:
        layer = getattr(instance, traced.get(parameter.name, ""), None)
        if isinstance(layer, nn.Module):
            yield from _of_first_sized(layer, parameter.name, sure=True)
    if parameters and parameters[0].name not in traced:
        yield from _of_first_sized(instance, parameters[0].name, sure=False)


def _layer_calls(tree: ast.AST | None) -> Iterator[tuple[str, str]]:
    """(argument, layer) of the first `self.layer(argument)` of each argument, which nothing was assigned to before."""
    if tree is None:
        return
    seen: set[str] = set()
    assigned: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            assigned[node.id] = min(node.lineno, assigned.get(node.id, node.lineno))
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Name)):
            continue
        owner, name = node.func, node.args[0].id
        is_own = isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name) and owner.value.id == "self"
        if is_own and name not in seen and node.lineno <= assigned.get(name, node.lineno):
            seen.add(name)
            assert isinstance(owner, ast.Attribute)
            yield name, owner.attr


def _of_first_sized(module: nn.Module, argument: str, *, sure: bool) -> Iterator[Evidence]:
    for name, layer in module.named_modules():
        told = _of_layer(layer)
        if told is not None:
            ranks, sizes, kind = told
            # Layers behind the first one may see something else, and containers may reshape before their first layer.
            direct = sure and (layer is module or isinstance(module, nn.Sequential))
            said = f"{type(layer).__name__}{f' {name}' if name else ''}"
            yield Evidence("layers", argument, ranks=ranks, sizes=sizes, kind=kind, sure=direct, said=said)
            return
    own = [*module.parameters(recurse=False)]
    if own and own[0].dim() == 1 and own[0].numel() > 1:
        yield Evidence("layers", argument, sizes=((-1, own[0].numel()),), sure=False, said="a parameter of its own")


_Told = tuple[tuple[int, ...], tuple[tuple[int, int], ...], Literal["float", "int"] | None]


def _of_layer(layer: nn.Module) -> _Told | None:
    """(ranks, sizes, kind) that a layer of torch takes; None for one that fixes nothing."""
    if isinstance(layer, nn.Linear):
        return (), ((-1, layer.in_features),), "float"
    if isinstance(layer, nn.modules.conv._ConvNd):
        # With a batch, as nearly everybody calls them; unbatched is not ruled out by saying so of others.
        return (len(layer.kernel_size) + 2,), ((1, layer.in_channels),), "float"
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return (), (), "int"
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        shape = tuple(layer.normalized_shape)
        return (), tuple((axis - len(shape), size) for axis, size in enumerate(shape)), "float"
    if isinstance(layer, nn.GroupNorm):
        return (), ((1, layer.num_channels),), "float"
    if isinstance(layer, nn.modules.batchnorm._NormBase):
        ranks = {"1": (2, 3), "2": (4,), "3": (5,)}.get(type(layer).__name__[-2:-1], ())
        return ranks, ((1, layer.num_features),), "float"
    if isinstance(layer, nn.RNNBase):
        return (3,), ((-1, layer.input_size),), "float"
    if isinstance(layer, nn.RNNCellBase):
        return (2,), ((-1, layer.input_size),), "float"
    if isinstance(layer, nn.MultiheadAttention):
        return (3,), ((-1, layer.embed_dim),), "float"
    return None


# ------------------------------------------------------------------------------------------------------------ source


def _source(function: Callable[..., Any], tree: ast.AST | None, names: list[str]) -> Iterator[Evidence]:
    """Axes that are taken apart, named or used. Branches may speak of several ranks, so that only one is certain."""
    exact: dict[str, set[int]] = {
        name: {hint.rank} for name, hint in source_hints(function).items() if hint.rank is not None
    }
    least: dict[str, int] = {}
    for node in ast.walk(tree) if tree is not None else ():
        for name, rank, is_exact in _axes_used(node):
            if is_exact:
                exact.setdefault(name, set()).add(rank)
            else:
                least[name] = max(least.get(name, 0), rank)
    for name in names:
        if name in exact:
            ranks = tuple(sorted(exact[name]))
            said = f"{' or '.join(map(str, ranks))} axes are taken apart"
            yield Evidence("source", name, ranks=ranks, sure=len(ranks) == 1, said=said)
        elif least.get(name, 0) >= 2:
            yield Evidence("source", name, least_rank=least[name], sure=False, said=f"its axis {least[name]} is used")


def _followed(
    function: Callable[..., Any], instance: nn.Module | None, names: list[str], told: frozenset[str]
) -> Iterator[Evidence]:
    """What helpers and layers demand that an argument comes to. `told`: those whose own code says the rank already,
    which must not count a second time.
    """
    if not names:  # nothing to read, perhaps not even a signature
        return
    is_apart = list(inspect.signature(function).parameters)[:1] != names[:1]
    for name, parameter in demands(function, instance, names, skip_first=instance is None and is_apart).items():
        form = parameter.form
        sizes = tuple((index, size) for index, axis in form.axes.items() if (size := axis.known()) is not None)
        ranks = (form.rank,) if form.rank is not None and name not in told else ()
        least = form.least_rank if name not in told else 0
        if sizes and instance is not None:
            said = "what it comes to in the built module"
            yield Evidence("layers", name, ranks=ranks, least_rank=least, sizes=sizes, sure=False, said=said)
        elif ranks or sizes or least >= 2:
            said = "what is done with it further on"
            yield Evidence("source", name, ranks=ranks, least_rank=least, sizes=sizes, sure=False, said=said)


def _axes_used(node: ast.AST) -> Iterator[tuple[str, int, bool]]:
    """(argument, axes, exactly so many) that an operation names."""
    if isinstance(node, ast.Subscript):
        if (
            isinstance(node.value, ast.Attribute)
            and node.value.attr == "shape"
            and isinstance(node.value.value, ast.Name)
        ):
            index = integer_of(node.slice)
            if index is not None:
                yield node.value.value.id, index + 1 if index >= 0 else -index, False
        elif isinstance(node.value, ast.Name) and isinstance(node.slice, ast.Tuple):
            parts = node.slice.elts
            plain = [part for part in parts if not (isinstance(part, ast.Constant) and part.value in (None, ...))]
            yield node.value.id, len(plain), False
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from _axes_of_call(node, node.func)


_ALONG_AXES: Final = frozenset(
    {"transpose", "swapaxes", "size", "flatten", "mean", "sum", "softmax", "log_softmax", "unbind", "cumsum", "var"}
)


def _axes_of_call(node: ast.Call, function: ast.Attribute) -> Iterator[tuple[str, int, bool]]:
    if not isinstance(function.value, ast.Name):
        return
    owner, given = function.value.id, list(node.args)
    if owner in ("torch", "F") and given and isinstance(given[0], ast.Name):
        owner, given = given[0].id, given[1:]
    numbers = [number for item in given for number in _integers(item)]
    named = [number for item in node.keywords if item.arg in ("dim", "axis") for number in _integers(item.value)]
    if function.attr == "permute" and len(numbers) == len(given) > 1:
        yield owner, len(numbers), True
    elif named or (numbers and function.attr in _ALONG_AXES):
        axes = [*named, *(numbers if function.attr in _ALONG_AXES else ())]
        yield owner, max(number + 1 if number >= 0 else -number for number in axes), False


def _integers(node: ast.expr) -> list[int]:
    items = node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
    return [number for item in items if (number := integer_of(item)) is not None]


# ------------------------------------------------------------------------------------------------------------- words

_AXES: Final = r"[(\[]\s*((?:\\?[A-Za-z*.][\w*.']*|\d+)(?:\s*,\s*(?:\\?[A-Za-z*.][\w*.'+/ -]*|\d+))+)\s*,?\s*[)\]]"
_CROSSED: Final = r"\b((?:[A-Z]|\d+)(?:\s?[x\u00d7]\s?(?:[A-Z]|\d+)){1,5})\b"
_OPEN: Final = re.compile(r"\*|\.\.\.|\\dots|\bany\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class WrittenShape:
    """A shape in a text: how many axes it names, whether others may stand before them, and the sizes it says."""

    axes: int
    is_open: bool
    sizes: tuple[tuple[int, int], ...]

    def evidence(self, argument: str, said: str) -> Evidence:
        ranks = () if self.is_open else (self.axes,)
        return Evidence("words", argument, ranks=ranks, least_rank=self.axes, sizes=self.sizes, said=said)


def shape_in(text: str) -> WrittenShape | None:
    """The first shape in a text, `(B, C, H, W)`, `(*, 3)` or `BxCxHxW`."""
    written = re.search(_AXES, text)
    crossed = re.search(_CROSSED, text)
    if written is not None and (crossed is None or written.start() < crossed.start()):
        items = [item.strip() for item in written[1].split(",")]
        named = [item for item in items if not _OPEN.search(item)]
        if not all(_names_axis(item) for item in named):
            return None
        is_open = len(named) < len(items)
        # Counted from the end: what is open stands in front, and where it doesn't, nothing can be said.
        if is_open and not _OPEN.search(items[0]):
            return WrittenShape(len(named), is_open=True, sizes=())
        return WrittenShape(len(named), is_open=is_open, sizes=_sizes_of(named))
    if crossed is not None:
        items = re.split(r"\s?[x\u00d7]\s?", crossed[1])
        return WrittenShape(len(items), is_open=False, sizes=_sizes_of(items))
    words = crossed_words(text)
    return WrittenShape(len(words), is_open=False, sizes=_sizes_of(list(words))) if words else None


def _sizes_of(items: list[str]) -> tuple[tuple[int, int], ...]:
    return tuple((index - len(items), int(item)) for index, item in enumerate(items) if item.isdecimal())


def _names_axis(text: str) -> bool:
    """A letter or a word that names an axis; `(float, optional)` and `(int, int)` are no shapes."""
    word = text.strip()
    return not re.fullmatch(
        r"(?i)optional|default.*|float|int|bool|str|tensor|torch\.\w+|none|true|false|e\.?g\.?.*|i\.?e\.?.*|\w+ \w+ .*",
        word,
    )


def _words(text: str, parameters: list[inspect.Parameter]) -> Iterator[Evidence]:
    """Shapes in a docstring, behind the parameter's name or, for the first one, behind `Input:`."""
    for index, parameter in enumerate(parameters):
        names = [re.escape(parameter.name)] + (["Inputs?", "input"] if index == 0 else [])
        pattern = rf"^[\s*:-]*(?:param\s+(?:\w+\s+)?)?[`*]*(?:{'|'.join(names)})[`*]*\s*[:(\-=]"
        lines = text.splitlines()
        for number, line in enumerate(lines):
            if not re.match(pattern, line):
                continue
            indent = len(line) - len(line.lstrip())
            block = [re.sub(pattern, "", line, count=1)]
            for following in lines[number + 1 : number + 4]:
                if not following.strip() or len(following) - len(following.lstrip()) <= indent:
                    break
                block.append(following)
            shape = shape_in(" ".join(block))
            if shape is not None:
                yield shape.evidence(parameter.name, "its docstring")
            break


def _comments(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> Iterator[Evidence]:
    """`x: Tensor,  # (B, N, C)` beside a parameter, and `# x: (B, N, C)` in the body."""
    try:
        lines = inspect.getsource(function).splitlines()[:60]
    except (OSError, TypeError):
        return
    for parameter in parameters:
        name = re.escape(parameter.name)
        for line in lines:
            code, mark, comment = line.partition("#")
            if not mark:
                continue
            beside = re.fullmatch(rf"\s*{name}\s*(:.*|=.*|,)?\s*,?\s*", code)
            told = re.match(rf"\s*`?{name}`?\s*(?::|=|is|has|\.shape|shape)", comment)
            shape = shape_in(comment) if beside or told else None
            if shape is not None:
                yield shape.evidence(parameter.name, "a comment beside it")
                break


def _annotation(parameter: inspect.Parameter) -> Iterator[Evidence]:
    """jaxtyping: `Float[Tensor, "batch n d"]`, as the object or as its text."""
    annotation = parameter.annotation
    dims = getattr(annotation, "dim_str", None)
    if not isinstance(dims, str):
        written = re.search(
            r"""(?:Float|Int|Bool|Num|Real|Shaped|Complex)\w*\[[^"']*["']([^"']+)["']""", str(annotation)
        )
        dims = written[1] if written else None
    if dims is not None and "..." not in dims and "*" not in dims:
        axes = dims.split()
        sizes = tuple((index, int(axis)) for index, axis in enumerate(axes) if axis.isdecimal())
        yield Evidence("annotation", parameter.name, ranks=(len(axes),), sizes=sizes, said=f'"{dims}"')
