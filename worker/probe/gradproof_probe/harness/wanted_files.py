"""Errors that say that a file or a download is wanted which isn't there: no argument that can be made up is one.

Reads the error and the source of the frame that raised it; opens nothing and asks no network.
"""

from __future__ import annotations

import ast
import errno
import inspect
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final

from gradproof_probe.harness.sources import function_of, raised_at

# An error that is wrapped more often than this isn't followed.
_MOST_CAUSES: Final = 5
_ABSENT: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
# By name: these classes belong to packages that the probe doesn't import (huggingface_hub, requests, httpx, urllib3).
_OF_NETWORKS: Final = frozenset(
    {
        *("gaierror", "URLError", "ConnectionError", "ConnectError", "ConnectTimeout", "MaxRetryError"),
        *("NameResolutionError", "LocalEntryNotFoundError", "EntryNotFoundError", "RepositoryNotFoundError"),
        *("OfflineModeIsEnabled", "HfHubHTTPError", "HFValidationError"),
    }
)
_SAID_OF_NETWORKS: Final = (
    "Network is unreachable",
    "Name or service not known",
    "Temporary failure in name resolution",
    "is not a local folder and is not a valid model identifier",
    "couldn't connect to 'http",
)
_QUESTIONS: Final = frozenset({"exists", "isfile", "isdir", "is_file", "is_dir", "lexists"})


def wants_file(error: BaseException | None) -> bool:
    """Whether an error, or what it was raised from, is about a file or a download that isn't there."""
    for _ in range(_MOST_CAUSES):
        if error is None:
            return False
        if _is_about_file(error) or _is_about_network(error):
            return True
        error = error.__cause__
    return False


def is_plainest(constructor: str, cls: Callable[..., Any]) -> bool:
    """Whether a constructor gives nothing that has a default: as every other call gives, this one does."""
    try:
        call = ast.parse(constructor, mode="eval").body
        parameters = list(inspect.signature(cls).parameters.values())
    except (SyntaxError, ValueError, TypeError, RecursionError):
        return False
    required = {p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    return (
        isinstance(call, ast.Call)
        and len(call.args) <= len(required)
        and all(keyword.arg in required for keyword in call.keywords)
    )


def _is_about_file(error: BaseException) -> bool:
    last = raised_at(error)
    path = last.tb_frame.f_code.co_filename if last is not None else ""
    if isinstance(error, _ABSENT):
        return not path.endswith("/subprocess.py")  # a compiler or another program that isn't installed
    if isinstance(error, OSError) and error.errno == errno.EBADF:
        return True  # a number was given to `open`, which takes it for a file that is open already
    if "No such file or directory" in str(error):
        return True
    return last is not None and any(_asks_for_existence(test) for test in _tests_before(last))


def _is_about_network(error: BaseException) -> bool:
    if not _OF_NETWORKS.isdisjoint(cls.__name__ for cls in type(error).__mro__):
        return True
    if any(text in str(error) for text in _SAID_OF_NETWORKS):
        return True
    last = raised_at(error)
    return isinstance(error, OSError) and last is not None and last.tb_frame.f_code.co_filename.endswith("/socket.py")


def _tests_before(raised: TracebackType) -> Iterator[ast.expr]:
    """What the `assert` that failed asks, or the `if` right around the `raise`."""
    function = function_of(raised.tb_frame.f_code)
    for node in ast.walk(function) if function is not None else ():
        if isinstance(node, ast.Assert) and _covers(node, raised.tb_lineno):
            yield node.test
        elif isinstance(node, ast.If):
            branches = [*node.body, *node.orelse]
            if any(isinstance(part, ast.Raise) and _covers(part, raised.tb_lineno) for part in branches):
                yield node.test


def _covers(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _asks_for_existence(test: ast.expr) -> bool:
    called = (node.func for node in ast.walk(test) if isinstance(node, ast.Call))
    return any(isinstance(function, ast.Attribute) and function.attr in _QUESTIONS for function in called)
