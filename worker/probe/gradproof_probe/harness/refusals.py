"""Errors that say that no other argument would help: not installed, left abstract, not a file here, not differentiable.

Reads the error, the source of the frame that raised it and the target's class; runs nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from gradproof_probe.harness.lost_imports import lost_name
from gradproof_probe.harness.objects import attributes_of, classes_of
from gradproof_probe.harness.sources import function_of, raised_at, tree_of
from gradproof_probe.harness.wanted_files import wants_file
from gradproof_probe.importing import NotRunnableError, Resolved, describe_error, on_pypi
from gradproof_probe.missing_modules import MissingDependencyError

# Its arguments leave torch, or are no tensors at all: there is nothing to differentiate.
_OUTSIDE_TORCH: Final = re.compile(
    r"Can't call numpy\(\) on Tensor that requires grad|Cannot interpret 'torch\.\w+' as a data type|"
    r"is not an Optimizer\b|transpose\(\): argument 'dim0' \(position 1\) must be int, not tuple|"
    r"'Tensor' object has no attribute '(?:astype|tobytes|copy)'"
)
_IMPORT_ERRORS: Final = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")


def refusal(error: BaseException | None, resolved: Resolved) -> NotRunnableError | None:
    """Why the target can't be run with whatever arguments; None where they may be what is wrong."""
    if error is None:
        return None
    if isinstance(error, NameError) and (module := _failed_import(error)) is not None:
        return NotRunnableError(
            "missing dependency",
            f"{module}{on_pypi(module.partition('.')[0])} is not installed, and {error.name} of it is needed",
        )
    if isinstance(error, AttributeError) and _is_left_to_subclasses(error, resolved):
        return NotRunnableError("abstract", f"{describe_error(error, 200)}: only its subclasses have it")
    if isinstance(error, NotImplementedError) and (unwritten := _unwritten(error, resolved)) is not None:
        return unwritten
    if (lost := lost_name(error)) is not None:
        top = lost.partition(".")[0]
        return NotRunnableError("missing dependency", f"{top}{on_pypi(top)} is not installed, and {lost} is needed")
    if _OUTSIDE_TORCH.search(str(error)):
        return NotRunnableError("no differentiable output", describe_error(error, 200))
    return missing_dependency(error)


def needs_files(error: BaseException | None, wanted: BaseException | None = None) -> NotRunnableError | None:
    """Whether a search ended at a file or a download that isn't there.

    `error` is what it ended with, `wanted` the error of this kind that a call without anything optional met.
    """
    told = error if error is not None and wants_file(error) else wanted
    if told is None:
        return None
    return NotRunnableError("needs files", f"asks for a file or a download that isn't here: {describe_error(told)}")


def missing_dependency(error: BaseException | None) -> NotRunnableError | None:
    if isinstance(error, MissingDependencyError):
        return NotRunnableError(
            "missing dependency",
            f"{error.name}{on_pypi(error.name or '')} is not installed, and {error.used} is needed",
        )
    if isinstance(error, ModuleNotFoundError):
        return NotRunnableError("missing dependency", f"No module named {error.name!r}, imported when it is used")
    if type(error) is ImportError:
        # A check of the submitted code's own: it says what it requires.
        return NotRunnableError("missing dependency", describe_error(error, 200))
    said = re.search(r"No module named '([\w.]+)'", str(error)) if error is not None else None
    if said is not None and error is not None:
        # The package's own exception for an optional import, or for a compiled part that isn't there.
        return NotRunnableError("missing dependency", f"No module named {said[1]!r}: {describe_error(error, 200)}")
    return None


def _failed_import(error: NameError) -> str | None:
    """The module that a global name would have come from, had its import inside `try` not failed."""
    traceback = raised_at(error)
    if traceback is None or error.name is None:
        return None
    tree = tree_of(traceback.tb_frame.f_code.co_filename)
    for node in ast.walk(tree) if tree is not None else ():
        if not isinstance(node, ast.Try) or not any(_catches_imports(handler) for handler in node.handlers):
            continue
        for module, name in _imported(node.body):
            if name == error.name:
                return module
    return None


def _catches_imports(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(item is None or ast.unparse(item) in _IMPORT_ERRORS for item in caught)


def _imported(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """(module, the name it is bound to)."""
    for statement in body:
        if isinstance(statement, ast.ImportFrom) and statement.level == 0:
            yield from ((statement.module or "", alias.asname or alias.name) for alias in statement.names)
        elif isinstance(statement, ast.Import):
            yield from ((alias.name, alias.asname or alias.name.partition(".")[0]) for alias in statement.names)


def _unwritten(error: NotImplementedError, resolved: Resolved) -> NotRunnableError | None:
    """A forward that there isn't, or a method of the target itself that does nothing but raise.

    A method that raises for some values and not for others has said something about the values.
    """
    cls = resolved.value
    if not isinstance(cls, type):
        return None
    if f'Module [{cls.__name__}] is missing the required "forward" function' in str(error):
        return NotRunnableError("no forward", f"neither {cls.__qualname__} nor its bases define one")
    traceback = raised_at(error)
    if traceback is None:
        return None
    code = traceback.tb_frame.f_code
    own = code.co_argcount > 0 and isinstance(traceback.tb_frame.f_locals.get(code.co_varnames[0]), cls)
    node = function_of(code) if own else None
    if node is None or any(not _says_nothing(statement) for statement in node.body[:-1]):
        return None
    return NotRunnableError("abstract", describe_error(error)) if isinstance(node.body[-1], ast.Raise) else None


def _says_nothing(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_left_to_subclasses(error: AttributeError, resolved: Resolved) -> bool:
    """`self.project` or `cls.project` that neither the class nor its parents have, and a subclass has."""
    cls, name = resolved.value, error.name
    if not isinstance(cls, type) or name is None or name in attributes_of(cls):
        return False
    if error.obj is not cls and type(error.obj) is not cls:
        return False
    derived = [other for other in classes_of(resolved.module.__name__) if other is not cls and cls in other.__mro__]
    return any(name in attributes_of(other) for other in derived)
