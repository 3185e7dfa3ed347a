"""Which dotted names exist under `torch`: by asking the modules that are loaded, and by reading those that are not.

A module that only some builds or some optional package can load still counts, from its source. This module must not
import anything of torch that `import torch` leaves alone: the answer would depend on who asked before.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import torch

ROOT = Path(torch.__file__).parent


def existing_names() -> tuple[dict[str, list[str]], list[str]]:
    """(the names in each public module and in `torch.Tensor`, the modules whose names can't be listed).

    Names with double underscores are left out: every module has its own. Private modules are listed as names of
    their parents only, what is inside them is torch's own business and changes from build to build.
    """
    modules = set(_public_modules())
    found: dict[str, set[str]] = {name: set() for name in modules}
    open_modules: set[str] = set()
    for name, is_package in _all_modules():
        parent, _, last = name.rpartition(".")
        if parent in found:
            found[parent].add(last)
        if name not in modules:
            continue
        loaded = sys.modules.get(name)
        if isinstance(loaded, ModuleType):
            found[name].update(dir(loaded))
        path = ROOT.joinpath(*name.split(".")[1:])
        source = path / "__init__.py" if is_package else path.with_suffix(".py")
        bound = _bound_names(source)
        found[name].update(bound - {"*"})
        found[name].update(_taken_by_star(name, source, is_package=is_package))
        if ("*" in bound and loaded is None) or (_answers_any_name(loaded, bound) and loaded is not torch):
            open_modules.add(name)
    for name, value in vars(torch).items():
        if isinstance(value, ModuleType) and f"torch.{name}" not in found:
            open_modules.add(f"torch.{name}")
    # A build for a device gives it the tensor types that `torch.cuda` always lists.
    types = {item for item in found["torch.cuda"] if item.endswith("Tensor")}
    for members in found.values():
        if "device_count" in members and "current_device" in members:
            members.update(types)
    found["torch"].update(torch._deprecated_attrs, torch._lazy_modules)
    found["torch.Tensor"] = set(dir(torch.Tensor)) | set(torch.Tensor.__annotations__)
    listed = {
        name: sorted(item for item in names if not (item.startswith("__") and item.endswith("__")))
        for name, names in sorted(found.items())
    }
    return listed, sorted(open_modules)


def _answers_any_name(loaded: ModuleType | None, bound: set[str]) -> bool:
    if "__getattr__" in bound:
        return True
    # torch replaces some of its modules by objects of a class of its own, which may answer to anything.
    return loaded is not None and type(loaded) is not ModuleType and hasattr(type(loaded), "__getattr__")


def _all_modules() -> Iterator[tuple[str, bool]]:
    """Every module of the wheel that has Python source, as (dotted name, whether it is a package)."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if any(not part.isidentifier() for part in parts):
            continue
        if parts[-1] == "__init__":
            yield ".".join(("torch", *parts[:-1])), True
        else:
            yield ".".join(("torch", *parts)), False


def _public_modules() -> Iterator[str]:
    for name, _ in _all_modules():
        if not any(part.startswith("_") for part in name.split(".")):
            yield name


def _bound_names(source: Path) -> set[str]:
    """The names that a module binds at its top, in whatever branch; `*` when it imports some that are not listed."""
    return set(_bindings(ast.parse(source.read_bytes()).body))


def _taken_by_star(name: str, source: Path, *, is_package: bool) -> set[str]:
    """Public names that `from … import *` brings from another module of torch, in whatever build."""
    taken: set[str] = set()
    text = source.read_bytes()
    if b"import *" not in text:
        return taken
    for statement in ast.walk(ast.parse(text)):
        if not isinstance(statement, ast.ImportFrom) or statement.names[0].name != "*":
            continue
        parts = name.split(".") if is_package else name.split(".")[:-1]
        base = parts[: len(parts) - statement.level + 1] if statement.level else []
        path = ROOT.joinpath(*[*base, *(statement.module or "").split(".")][1:])
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.is_file():
                exported = _exported(candidate)
                bound = {item for item in _bound_names(candidate) if not item.startswith(("_", "*"))}
                taken.update(exported or bound)
    return taken


def _exported(source: Path) -> set[str]:
    """The names that a module may put into `__all__`, in whatever branch; empty when it has none."""
    found: set[str] = set()
    for statement in ast.walk(ast.parse(source.read_bytes())):
        if not isinstance(statement, (ast.Assign, ast.AugAssign, ast.Expr)):
            continue
        told = list(ast.walk(statement))
        if any(isinstance(node, ast.Name) and node.id == "__all__" for node in told):
            found.update(node.value for node in told if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return found


def _bindings(body: Iterable[ast.stmt]) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield statement.name
            continue
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            for alias in statement.names:
                yield alias.asname or alias.name.partition(".")[0]
            continue
        if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.With)):
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield node.id
        for field in ("body", "orelse", "finalbody"):
            yield from _bindings(getattr(statement, field, ()))
        for handler in getattr(statement, "handlers", ()):
            yield from _bindings(handler.body)
