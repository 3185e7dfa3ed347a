"""What torch itself says is deprecated or gone: by `@deprecated`, by a warning that always comes, or by the manual.

A name that still exists and only raises counts as removed. Replacements are read from torch's own messages and kept
only where they exist. This module must not judge: whether a warning is worth a finding is the analyzer's business.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType

import torch
from torch_facts import names

_WARNING_KINDS = ("FutureWarning", "DeprecationWarning")
# `torch.amp.autocast('cuda', args...)`: how a call is to be rewritten.
_TEMPLATE = re.compile(r"[Uu]se `?(torch[\w.]*)\(([^)]*args\.\.\.[^)]*)\)`?")
_REPLACEMENTS = (
    re.compile(r"(?:[Pp]lease )?[Uu]se :?\w*:?`{1,2}~?(torch\.[\w.]+)(?:\(\))?`"),
    re.compile(r"in favou?r of :?\w*:?`{1,2}~?(torch\.[\w.]+)(?:\(\))?`"),
    re.compile(r"renamed to :?\w*:?`{1,2}(torch\.[\w.]+)`"),
    re.compile(r"[Uu]se (torch\.[\w.]+)\b"),
    re.compile(r"in favou?r of (torch\.[\w.]+)\b"),
)
_NEIGHBOUR = re.compile(
    r"(?:[Uu]se|in favou?r of|renamed to|deprecated, use) `{1,2}(?:nn\.(?:init|functional)\.)?([\w.]+)`"
)
_DROP_IN = re.compile(
    r"renamed to|method is now deprecated|drop-in replacement|now deprecated in favor|is now deprecated|was renamed",
    re.I,
)
_IN_MANUAL = re.compile(r"\.\. warning::\s*\n\s+(?P<text>[^\n]*\bdeprecated\b.*?)(?:\n\s*\n|\Z)", re.S)
# What nobody writes in model code.
_LEFT_OUT = ("torch.testing._", "torch.distributed.elastic", "torch.onnx", "torch.utils.data.datapipes")
_SPACES = re.compile(r"\s+")


def deprecations_document(version: str) -> dict[str, object]:
    """`deprecated` and `removed`: full name → [what torch says, replacement or "", template or "", who says it].

    The template says how the arguments of a call change (`'cuda', args...`); it is `args...` where the replacement
    takes the same. Who says it: W a warning at run time, M the manual only, R what the function raises.
    """
    deprecated: dict[str, list[str]] = {}
    removed: dict[str, list[str]] = {}
    for full, value in _public_values():
        gone = _raises_only(value)
        if gone is not None:
            removed[full] = [*_entry(full, gone), "R"]
            continue
        warned = _warning_of(value)
        said = warned if warned is not None else _manual_of(full, value)
        # An alias that is deprecated is the function that replaces it, and shares its mark.
        if said is not None and f"se `{full.rpartition('.')[2]}` instead" not in said:
            deprecated[full] = [*_entry(full, said), "M" if warned is None else "W"]
    return {"torch": version, "deprecated": deprecated, "removed": removed}


def _public_values() -> Iterator[tuple[str, object]]:
    for module in sorted(names.existing_names()[0]):
        if module.startswith(
            ("torch.testing._", "torch.distributed.elastic", "torch.onnx", "torch.utils.data.datapipes")
        ):
            continue
        loaded = torch.Tensor if module == "torch.Tensor" else sys.modules.get(module)
        if loaded is None:
            continue
        for name, value in sorted(vars(loaded).items() if isinstance(loaded, ModuleType) else _members(loaded)):
            if not name.startswith("_") and callable(value):
                yield f"{module}.{name}", value


def _members(owner: type) -> Iterator[tuple[str, object]]:
    for name in dir(owner):
        yield name, getattr(owner, name, None)


def _warning_of(value: object) -> str | None:
    """The words of the warning that comes with every use; None when there is none."""
    own = vars(value).get("__deprecated__") if hasattr(value, "__dict__") else None
    if own is None and isinstance(value, type):
        own = getattr(vars(value).get("__init__"), "__deprecated__", None)
    if isinstance(own, str):
        return own
    always = _always_warns(value)
    # A message that is put together when it is shown has gaps here; the manual says the same in full.
    return inspect.getdoc(value) if always is not None and "`nn.init.`" in always else always


def _manual_of(full: str, value: object) -> str | None:
    """What the manual says of a deprecation; None when it says nothing."""
    documentation = inspect.getdoc(value) or ""
    found = _IN_MANUAL.search(documentation)
    if found is not None and _speaks_of_itself(found["text"], full.rpartition(".")[2]):
        return found["text"]
    return documentation if "This function is deprecated" in documentation else None


def _speaks_of_itself(text: str, name: str) -> bool:
    """Whether it is the function, and not one of its arguments, that the manual calls deprecated."""
    subject = text.partition("deprecated")[0]
    return re.search(rf"`~?[\w.]*\b{re.escape(name)}(\(\))?`", subject) is not None or "function is" in subject


def _tree_of(value: object) -> ast.FunctionDef | None:
    if not inspect.isfunction(value):
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(value)))
    except (OSError, TypeError, SyntaxError):
        return None
    (node,) = tree.body[:1]
    return node if isinstance(node, ast.FunctionDef) else None


def _body(function: ast.FunctionDef) -> list[ast.stmt]:
    first = function.body[0]
    has_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return function.body[1:] if has_docstring else function.body


def _raises_only(value: object) -> str | None:
    """What a function says that does nothing but raise, if it says that it is gone."""
    function = _tree_of(value)
    if function is None:
        return None
    body = _body(function)
    if len(body) != 1 or not isinstance(body[0], ast.Raise) or not isinstance(body[0].exc, ast.Call):
        return None
    text = _literal(body[0].exc.args[0]) if body[0].exc.args else ""
    return text if "removed" in text else None


def _always_warns(value: object) -> str | None:
    function = _tree_of(value)
    if function is None:
        return None
    for statement in _body(function):
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("warnings.warn", "_warnings.warn") and call.args:
            text = _literal(call.args[0])
            kinds = ast.unparse(call)
            if "deprecated" in text and (any(kind in kinds for kind in _WARNING_KINDS) or text.startswith("`nn.")):
                return text
    return None


def _literal(node: ast.expr) -> str:
    return "".join(n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def _entry(full: str, said: str) -> list[str]:
    said = _SPACES.sub(" ", said).strip()
    template = _TEMPLATE.search(said)
    if template is not None and _exists(template[1]):
        return [_first_sentences(said), template[1], template[2]]
    replacement = _replacement(full, said)
    same = replacement and _DROP_IN.search(said) is not None
    return [_first_sentences(said), replacement, "args..." if same else ""]


def _replacement(full: str, said: str) -> str:
    for pattern in _REPLACEMENTS:
        for found in pattern.finditer(said):
            candidate = found[1].rstrip(".")
            if candidate != full and _exists(candidate):
                return candidate
    home = full.rpartition(".")[0]
    for found in _NEIGHBOUR.finditer(said):
        candidate = f"{home}.{found[1].rpartition('.')[2]}"
        if candidate != full and _exists(candidate):
            return candidate
    return ""


def _exists(dotted: str) -> bool:
    value: object = torch
    for part in dotted.split(".")[1:]:
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return not isinstance(value, ModuleType)


def _first_sentences(text: str) -> str:
    """At most 200 characters, cut at the end of a sentence or a word."""
    if len(text) <= 200:
        return text
    cut = text[:200]
    end = cut.rfind(". ")
    return cut[: end + 1] if end > 40 else cut[: cut.rfind(" ")] + " …"
