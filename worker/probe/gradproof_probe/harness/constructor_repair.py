"""Other constructor arguments after an error: which parameter the failing line speaks of, and what it might want."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
from collections.abc import Iterator
from typing import Final

# By what was raised: values that an argument of another kind would have. Expressions.
_SEQUENCES: Final = ("(8, 8)", "(1, 1)", "(2, 2, 2)", "[4, 8]")
_OBJECTS: Final = ("torch.nn.Linear(8, 8)", "torch.nn.Identity()", "torch.nn.ReLU")
_TEXTS: Final = ("'relu'", "'mean'", "'none'", "'same'", "'batch'")
_NUMBERS: Final = ("8", "4", "2", "1", "16", "3", "64", "0.5")


def constructor_repairs(
    error: BaseException, expression: str, parameters: list[inspect.Parameter], qualname: str
) -> Iterator[tuple[str, str]]:
    """(changed expression, why), the most likely first, at most a dozen."""
    call = ast.parse(expression, mode="eval").body
    if not isinstance(call, ast.Call):
        return
    given = {item.arg: ast.unparse(item.value) for item in call.keywords if item.arg}
    names = [p.name for p in parameters]
    suspects = _suspects(error, names) or [name for name in names if name in given]
    values = _alternatives(error)
    offered = 0
    for name in suspects:
        for value in values:
            if given.get(name) != value and offered < 12:
                offered += 1
                changed = {**given, name: value}
                order = [key for key in names if key in changed]
                yield (
                    f"{qualname}({', '.join(f'{key}={changed[key]}' for key in order)})",
                    f"{name}={value} after {type(error).__name__}",
                )


def _alternatives(error: BaseException) -> tuple[str, ...]:
    message = str(error)
    if re.search(r"not iterable|not subscriptable|has no len|cannot unpack|must be a sequence|to unpack", message):
        return _SEQUENCES
    if re.search(r"not callable|object has no attribute|is not a Module subclass", message):
        return (
            (*_OBJECTS, *_TEXTS[:1], "None")
            if "'int'" in message or "'float'" in message
            else (*_OBJECTS, *_NUMBERS[:2])
        )
    if isinstance(error, KeyError | NotImplementedError) or re.search(
        r"unknown|not supported|invalid|unsupported|must be one of|not found", message, re.I
    ):
        options = re.findall(r"'(\w+)'", message)
        return (*(f"'{option}'" for option in options[:4]), *_TEXTS, "None")
    return _NUMBERS


def _suspects(error: BaseException, names: list[str]) -> list[str]:
    """Parameters named in the failing lines, from the innermost frame outwards."""
    lines: list[str] = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if "gradproof_probe" not in code.co_filename:
            lines.append(linecache.getline(code.co_filename, traceback.tb_lineno))
        traceback = traceback.tb_next
    found: dict[str, None] = {}
    for line in [*reversed(lines), str(error)]:
        for word in re.findall(r"\w+", line):
            if word in names:
                found[word] = None
    return list(found)
