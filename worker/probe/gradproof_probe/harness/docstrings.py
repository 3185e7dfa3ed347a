"""What docstrings, shape comments and annotations say of a parameter: its axes by symbol, its type, its values.

The author's word, not the code's: used where the code demands nothing, and beside it to tell how sure a shape is.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gradproof_probe.harness.axes import Axis, Form

_AXIS: Final = r"(?:\*|\.\.\.|\d+|[A-Za-z]\w{0,14}(?:\s*[*/+-]\s*\w+)?)"
_SHAPE: Final = re.compile(rf"[\[(]\s*({_AXIS}(?:\s*[,x\u00d7]\s*{_AXIS})*)\s*,?\s*[\])]")
# Written without spaces or commas, with what isn't one letter in brackets: `BxVx3`, `Lx(V * 3)`, `N x V x (J + 1)`.
_SPELLED_AXIS: Final = r"(?:[A-Z][A-Z0-9]{0,2}|\d+|\([\w +*-]{1,24}\))"
_SPELLED: Final = re.compile(
    rf"(?<![\w(])(?:[A-Z][A-Z0-9]{{0,2}})(?:\s*[x\u00d7]\s*{_SPELLED_AXIS}){{1,4}}(?!\s*[*+]|\w)"
)
_WORDS: Final = re.compile(
    r"shape|size|dims?\b|tensor|math|array|batch|matrix|of\b|vector|map|image|points?", re.IGNORECASE
)
_CROSSED_WORDS: Final = re.compile(
    r"(?:^|:|\b(?:shape|size|dimensions?|tensor|matrix|of)\b)[\s:=(\[]*"
    r"((?:[A-Za-z_]\w*|\d+)(?:\s[x\u00d7]\s(?:[A-Za-z_]\w*|\d+)){1,5})\b"
)
_PROSE: Final = frozenset(
    ["the", "a", "an", "and", "or", "of", "in", "by", "to", "is", "if", "for", "from", "axis", "along", "has", "its"]
)
_NOT_AXES: Final = frozenset(
    [
        "optional",
        "default",
        "int",
        "float",
        "bool",
        "str",
        "none",
        "tensor",
        "torch",
        "true",
        "false",
        "list",
        "tuple",
        "required",
        "callable",
        "long",
        "number",
        "integer",
        "string",
        "any",
        "e.g",
        "i.e",
        "see",
        "note",
        "if",
        "or",
        "and",
        "the",
        "a",
        "an",
        "is",
    ]
)
# First match wins.
_BY_WORD: Final = (
    (re.compile(r"\bsym(metric)?\b", re.I), "symmetric"),
    (re.compile(r"positive[- ](semi-?)?definite|\bspd\b|\bpsd\b|covariance", re.I), "definite"),
    (re.compile(r"rotation matri|orthogonal|orthonormal", re.I), "orthogonal"),
    (re.compile(r"unit (vector|quaternion|norm|length)|quaternion|normali[sz]ed vector", re.I), "direction"),
    (re.compile(r"probabilit(y|ies) (distribution|vector|simplex)|sums? to (one|1)|softmax", re.I), "simplex"),
    (re.compile(r"probabilit|in (the range )?[\[(]0, ?1(\.0?)?[\])]|between 0 and 1", re.I), "unit"),
    (re.compile(r"(strictly )?positive|non-?negative|> ?0\b|standard deviation|variance", re.I), "positive"),
    (re.compile(r"bounding box|xyxy|x1, ?y1, ?x2, ?y2", re.I), "boxes"),
    (re.compile(r"\bsorted\b|monoton|ascending|increasing", re.I), "sorted"),
    (re.compile(r"invertible|homograph|projection matri|intrinsics|camera matri", re.I), "invertible"),
    (re.compile(r"in (the range )?\[-1, ?1\]|normali[sz]ed coordinates", re.I), "symmetric_unit"),
)
_INTEGER: Final = re.compile(
    r"LongTensor|IntTensor|\bint(eger)? tensor|int64|torch\.long|class ind|indices\b|token ids|labels? in|dtype=long",
    re.I,
)
_BOOLEAN: Final = re.compile(r"BoolTensor|\bbool(ean)? (tensor|mask)|torch\.bool|dtype=bool", re.I)
_SCALAR: Final = re.compile(r"\b(float|int|bool|str|number|string|boolean|integer)\b")
_COMPLEX: Final = re.compile(r"complex[- ]?(valued|tensor|64|128)", re.I)


@dataclass(slots=True)
class Word:
    """What is written about one parameter. `axes` are symbols, numbers, or `*`."""

    axes: tuple[str, ...] | None = None
    or_axes: tuple[tuple[str, ...], ...] = ()
    """Other shapes that are written to be allowed: `(B, E) or (B, T, E)`."""
    dtype: str = ""
    values: str = ""
    scalar: str = ""
    """float, int, bool or str, where it is written to be one."""
    text: str = ""


def words(function: Callable[..., Any], owner: type | None, names: Sequence[str]) -> dict[str, Word]:
    """By parameter; those of whom nothing is written are left out."""
    found: dict[str, Word] = {}
    texts = [inspect.getdoc(function) or "", (inspect.getdoc(owner) or "") if owner is not None else ""]
    comments = _comments(function)
    for name in names:
        described = [text for doc in texts if (text := _about(name, doc))]
        word = _read(" ".join(described))
        if word.axes is None and name in comments:
            word.axes = comments[name]
        if word.axes or word.dtype or word.values or word.scalar:
            found[name] = word
    if names and (names[0] not in found or found[names[0]].axes is None):
        for doc in texts:
            match = re.search(r"Shape:?\s*\n(?:[-\s:]*\n)?\s*[-*]?\s*(?:Input|input|x)\b[^:]*:\s*(.*)", doc)
            axes = axes_in(match[1]) if match else None
            if axes is not None:
                found.setdefault(names[0], Word()).axes = axes
                break
    return found


def _about(name: str, doc: str) -> str:
    """The words about a parameter, in the styles of Google, NumPy and Sphinx, and in lists."""
    patterns = (
        rf"^[ \t]*:param[ \t]+(?:[\w.\[\]]+[ \t]+)?{name}[ \t]*:(.*(?:\n[ \t]+(?!:).*)*)",
        rf"^([ \t]*)[-*]?[ \t]*[*`]*{name}[*`]*[ \t]*(\([^\n]*?\))?[ \t]*[:\-\u2013\u2014](.*(?:\n\1[ \t]+.*)*)",
        rf"^([ \t]*){name}[ \t]*:(.*(?:\n\1[ \t]+.*)*)",
        rf"^([ \t]*){name}[ \t]*((?:\n\1[ \t]+\S.*)+)",
    )
    for pattern in patterns:
        match = re.search(pattern, doc, re.MULTILINE)
        if match:
            return " ".join(" ".join(part or "" for part in match.groups()).split())[:600]
    match = re.search(rf"[`*]{{1,2}}{name}[`*]{{1,2}}[^.\n]*", doc)
    return match[0][:300] if match else ""


def _read(text: str) -> Word:
    word = Word(text=text)
    if not text:
        return word
    word.axes = axes_in(text)
    word.or_axes = _alternatives(text)
    if _INTEGER.search(text):
        word.dtype = "int"
    elif _BOOLEAN.search(text):
        word.dtype = "bool"
    elif _COMPLEX.search(text):
        word.dtype = "complex"
    scalar = _SCALAR.search(text[:80])
    if scalar and word.axes is None and "tensor" not in text[:80].lower():
        word.scalar = {"number": "float", "string": "str", "boolean": "bool", "integer": "int"}.get(
            scalar[1], scalar[1]
        )
    word.values = next((kind for pattern, kind in _BY_WORD if pattern.search(text)), "")
    return word


def plain_math(text: str) -> str:
    """LaTeX of shapes as plain text: `(N, C, H_{in}, W_{in})` is `(N, C, Hin, Win)`."""
    text = re.sub(r"\\(?:text|mathrm|mathit|operatorname)\{([^}]*)\}", r"\1", text)
    text = re.sub(r"_\{?\\?(\w+)\}?", r"\1", text)
    text = re.sub(r"\\(?:times|cdot)\b", " x ", text)
    text = re.sub(r"\\(?:l?dots|cdots)\b|\.\.\.", "...", text)
    return text.replace("\\", "").replace("$", "").replace("`", "")


def axes_in(text: str) -> tuple[str, ...] | None:
    """The first shape in a text, such as `(B, N, 3)`, `[batch, seq_len, dim]` or `B x C x H x W`."""
    text = plain_math(text)
    for match in _SHAPE.finditer(text):
        axes = tuple(item.strip() for item in re.split(r"[,\u00d7]|\bx\b", match[1]) if item.strip())
        is_tuple = re.search(r",\s*[\])]$", match[0]) is not None
        if _are_axes(axes, text[max(0, match.start() - 60) : match.start()], is_tuple=is_tuple):
            return axes
    spelled = _SPELLED.search(text)
    if spelled:
        parts = re.findall(_SPELLED_AXIS, spelled[0])
        return tuple(_spelled_axis(part) for part in parts)
    return crossed_words(text)


def _spelled_axis(part: str) -> str:
    """`V`, `J + 1` of `(J + 1)`, `J * 3` of `(Jx3)`, and `num_betas` of `(num_betas)`."""
    return re.sub(r"\s*[x\u00d7]\s*(?=\d)", " * ", part.strip().strip("()").strip())


def _alternatives(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(axes for part in re.split(r"\bor\b", text)[1:4] if (axes := axes_in(part)) is not None)


def crossed_words(text: str) -> tuple[str, ...] | None:
    """`n x num_classes`, where a description begins or a shape is spoken of; words of prose stand around an x too."""
    found = _CROSSED_WORDS.search(text)
    axes = tuple(re.split(r"\s[x\u00d7]\s", found[1])) if found else ()
    return axes if axes and not _PROSE.intersection(axis.lower() for axis in axes) else None


def _are_axes(axes: tuple[str, ...], before: str, *, is_tuple: bool = False) -> bool:
    lowered = [axis.lower() for axis in axes]
    if len(axes) > 6 or any(axis in _NOT_AXES for axis in lowered) or all(axis.isdigit() for axis in axes):
        return False
    short = all(re.fullmatch(r"\*|\.\.\.|\d+|[A-Z]\w{0,3}|[a-z]{1,2}\d?", axis) for axis in axes)
    if len(axes) == 1:
        if is_tuple and re.fullmatch(r"[A-Z]\w{0,2}", axes[0]):
            return True  # `(B,)` can be nothing else
        return _WORDS.search(before[-25:]) is not None and re.search(r"shape|size|math|dim", before, re.I) is not None
    led = re.fullmatch(r"[A-Z]", axes[0]) is not None  # `(B, T, state_dim)`
    return short or led or _WORDS.search(before) is not None


def _comments(function: Callable[..., Any]) -> dict[str, tuple[str, ...]]:
    """`x: Tensor,  # (B, T, C)`, `# x: (B, N, D)` and `x = ...  # [B, N]` where x is a parameter."""
    try:
        lines = inspect.getsource(function).splitlines()
    except (OSError, TypeError):
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for line in lines:
        code, mark, comment = line.partition("#")
        if not mark:
            continue
        axes = axes_in(comment)
        if axes is None:
            continue
        named = re.match(r"\s*(\w+)\s*(?::|=|is|\()", comment)
        declared = re.match(r"\s*(?:def \w+\((?:self,\s*)?)?(\w+)\s*(?::[^=]*)?,?\s*$", code.rstrip().rstrip("):"))
        name = named[1] if named else declared[1] if declared and code.strip() else None
        if name is not None:
            found.setdefault(name, axes)
    return found


def form_of_axes(axes: Sequence[str], symbols: dict[str, Axis]) -> Form:
    """The form that symbols say; one symbol is one size in all arguments. A star is a batch of one axis."""
    made = []
    for index, axis in enumerate(axes):
        word = axis.strip().strip("_#?*").lower() if axis not in ("*", "...") else "*"
        if axis.isdigit():
            made.append(Axis(int(axis)))
        elif word == "*":
            made.append(symbols.setdefault("*", Axis(symbol="b")))
        elif match := re.fullmatch(r"(\w+)\s*([*/+-])\s*(\w+)", word):
            made.append(_arithmetic(match, symbols))
        else:
            made.append(symbols.setdefault(word or f"_{index}", Axis(symbol=word)))
    return Form.of(made)


def _arithmetic(match: re.Match[str], symbols: dict[str, Axis]) -> Axis:
    first, operator, second = match.groups()
    sides = [Axis(int(s)) if s.isdigit() else symbols.setdefault(s, Axis(symbol=s)) for s in (first, second)]
    # A sum can't be said of axes, but the same one is the same size wherever it is written.
    result = symbols.setdefault(f"{first} {operator} {second}", Axis())
    if operator == "*":
        result.parts = tuple(sides)
    return result


_ANNOTATED: Final = re.compile(
    r"(?:\w+\.)?(Float|Int|UInt|Bool|Complex|Shaped|Num|Real|Inexact|Integer)(?:\d+)?\[\s*[\w.]*(?:Tensor|Array)\w*\s*,\s*[\"']([^\"']*)[\"']"
)


def annotated_axes(annotation: Any) -> tuple[tuple[str, ...] | None, str]:
    """(axes, dtype) of jaxtyping's `Float[Tensor, "b c h w"]`, of `TensorType["b", 3]` and the like."""
    text = annotation if isinstance(annotation, str) else ""
    dims = getattr(annotation, "dim_str", None)
    if isinstance(dims, str):
        return _dims(dims), _dtype(str(getattr(annotation, "__name__", "")))
    text = text or str(annotation)
    match = _ANNOTATED.search(text)
    if match:
        return _dims(match[2]), _dtype(match[1])
    match = re.search(r"TensorType\[([^\]]*)\]", text) or re.search(r"Annotated\[[\w.]*Tensor, *([^\]]*)\]", text)
    if match:
        items = [item.strip().strip("\"'") for item in match[1].split(",")]
        axes = tuple(axis for item in items for axis in item.split() if re.fullmatch(r"[\w*.-]+", axis))
        return (axes or None), ""
    return None, ""


def _dims(text: str) -> tuple[str, ...]:
    return tuple("*" if item.startswith(("*", "...")) else item.partition("=")[2] or item for item in text.split())


def _dtype(name: str) -> str:
    lowered = name.lower()
    return next((kind for kind in ("int", "bool", "complex") if kind in lowered), "")
