"""The source text of functions together with that of the functions they call, to be put into a script.

Only functions of this package: what they use of torch and the standard library, the script has to import.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType


def source_of(*functions: FunctionType) -> str:
    """Each function once, callees before callers."""
    texts: dict[FunctionType, str] = {}

    def add(function: FunctionType) -> None:
        if function in texts:
            return
        texts[function] = ""  # seen: a function may call itself
        for name in _names(function.__code__):
            called = function.__globals__.get(name)
            if isinstance(called, FunctionType) and called.__module__.startswith("gradproof_probe."):
                add(called)
        texts[function] = texts.pop(function) + inspect.getsource(function)

    for function in functions:
        add(function)
    return "\n\n".join(texts.values())


def _names(code: CodeType) -> Iterator[str]:
    """Global names that the code mentions, in comprehensions and lambdas too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
