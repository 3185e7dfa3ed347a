"""Names that would have come from a package which isn't installed, and that something else stands in for.

`PreTrainedModel = object` and `AutoModel = None` in the branch where an import isn't possible: what fails through them
lacks a package, and no argument. Reads source only; imports nothing.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from functools import lru_cache

from gradproof_probe.harness.sources import raised_at, tree_of

_STANDING_IN = (None, object)


def lost_base(cls: type) -> str | None:
    """The dotted name of a base that `object` stands in for."""
    module = sys.modules.get(cls.__module__)
    path = getattr(module, "__file__", None) or ""
    for node in ast.walk(tree) if (tree := tree_of(path)) is not None else ():
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
            for base in node.bases:
                if isinstance(base, ast.Name) and getattr(module, base.id, None) is object:
                    return lost_import(path, base.id)
    return None


def lost_name(error: BaseException) -> str | None:
    """The dotted name of what `None` or `object` stands in for on the line that raised."""
    traceback = raised_at(error)
    if traceback is None or not isinstance(error, AttributeError | TypeError):
        return None
    frame = traceback.tb_frame
    for node in ast.walk(tree) if (tree := tree_of(frame.f_code.co_filename)) is not None else ():
        if isinstance(node, ast.Name) and node.lineno == traceback.tb_lineno and node.id not in frame.f_locals:
            value = frame.f_globals.get(node.id, error)
            if any(value is other for other in _STANDING_IN):
                found = lost_import(frame.f_code.co_filename, node.id)
                if found is not None:
                    return found
    return None


@lru_cache(maxsize=256)
def lost_import(path: str, name: str) -> str | None:
    """From where a file imports a name somewhere, if that package isn't installed."""
    for node in ast.walk(tree) if (tree := tree_of(path)) is not None else ():
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name and not _is_installed(node.module):
                    return f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if (alias.asname or alias.name.partition(".")[0]) == name and not _is_installed(alias.name):
                    return alias.name
    return None


def _is_installed(module: str) -> bool:
    top = module.partition(".")[0]
    try:
        return top in sys.modules or importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return False
