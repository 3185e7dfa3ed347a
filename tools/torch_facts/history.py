"""Since when a public name of torch exists, and until when it did: from the sources in published wheels.

Only names that the sources show in the same way in every version are compared: what a module binds at its top, what
it lists in `__all__`, what it takes from another module of torch by `*`, and what the type stubs of the C extension
list. Nothing is imported. This module must not decide what to say of a name.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

from torch_facts.signatures import MODULES

# What the stubs of the extension add to the names of two places.
_STUBS = {
    "torch": ("torch/__init__.pyi", "torch/_C/__init__.pyi", "torch/_C/_VariableFunctions.pyi"),
    "torch.Tensor": ("torch/__init__.pyi", "torch/_C/__init__.pyi", "torch/tensor.py", "torch/_tensor.py"),
}
_MORE_MODULES = (
    "torch.Tensor",
    "torch.backends",
    "torch.backends.mps",
    "torch.accelerator",
    "torch.utils",
    "torch.xpu",
)
_FIRST_COMPARABLE = (2, 0)
_TENSOR_CLASSES = frozenset({"Tensor", "_TensorBase", "TensorBase"})


class Sources:
    """The names in one version of torch, from its wheel or from where it is installed."""

    def __init__(self, version: str, files: Iterable[str], read: Callable[[str], bytes]) -> None:
        self.version = version.partition("+")[0]
        self._files = frozenset(files)
        self._read = read
        self._trees: dict[str, ast.Module] = {}

    @classmethod
    def of_wheel(cls, path: Path) -> Sources:
        archive = zipfile.ZipFile(path)
        return cls(path.name.split("-")[1], archive.namelist(), archive.read)

    @classmethod
    def of_directory(cls, version: str, package: Path) -> Sources:
        """`package` is the directory `torch` itself."""
        root = package.parent
        files = [str(path.relative_to(root)) for path in package.rglob("*.py*") if path.suffix in (".py", ".pyi")]
        return cls(version, files, lambda name: (root / name).read_bytes())

    @property
    def release(self) -> tuple[int, int]:
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    @cached_property
    def modules(self) -> frozenset[str]:
        """The public modules that have Python source."""
        found = set()
        for name in self._files:
            if name.startswith("torch/") and name.endswith(".py"):
                dotted = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                if (
                    not any(part.startswith("_") for part in dotted.split("."))
                    and dotted.replace(".", "").isidentifier()
                ):
                    found.add(dotted)
        return frozenset(found)

    @cached_property
    def names(self) -> dict[str, frozenset[str]]:
        """The names in each public module and in `torch.Tensor`."""
        table = {module: self._names_of(module) for module in self.modules}
        for module in [*self.modules]:
            parent, _, last = module.rpartition(".")
            if parent in table:
                table[parent] |= {last}
        for dotted in self._private_modules():
            table["torch"] |= {dotted}
        table["torch.Tensor"] = self._tensor_names()
        self._trees.clear()  # a version's trees take 250 MiB
        return {module: frozenset(names) for module, names in table.items()}

    def _private_modules(self) -> Iterator[str]:
        for name in self._files:
            parts = name.removesuffix(".py").split("/")
            if len(parts) == 2 and parts[0] == "torch" and name.endswith(".py") and parts[1].startswith("_"):
                yield parts[1]

    def _names_of(self, module: str) -> frozenset[str]:
        found: set[str] = set()
        path = self._path(module)
        if path is not None:
            found |= self._own_names(path, module)
        for stub in _STUBS.get(module, ()):
            if stub in self._files:
                found |= set(_defined(self._tree(stub).body))
        return frozenset(name for name in found if not name.startswith("__"))

    def _tensor_names(self) -> frozenset[str]:
        found: set[str] = set()
        for path in _STUBS["torch.Tensor"]:
            if path not in self._files:
                continue
            for node in self._tree(path).body:
                if isinstance(node, ast.ClassDef) and node.name in _TENSOR_CLASSES:
                    found |= set(_defined(node.body))
        return frozenset(name for name in found if not name.startswith("__"))

    def _own_names(self, path: str, module: str) -> set[str]:
        tree = self._tree(path)
        found = set(_defined(tree.body)) | _exported(tree)
        for statement in ast.walk(tree):
            if isinstance(statement, ast.ImportFrom):
                source = self._source_of(statement, path, module)
                if source is None:
                    continue
                if statement.names[0].name == "*":
                    inner = self._tree(source)
                    found |= _exported(inner) or {n for n in _defined(inner.body) if not n.startswith("_")}
                    found |= {
                        alias.asname or alias.name for alias in _imports_of(inner) if not alias.name.startswith("_")
                    }
                else:
                    found |= {alias.asname or alias.name for alias in statement.names}
        return found

    def _source_of(self, statement: ast.ImportFrom, path: str, module: str) -> str | None:
        """The file of torch that an import takes names from; None when it is not torch's."""
        if statement.level == 0:
            if statement.module is None or statement.module.partition(".")[0] != "torch":
                return None
            return self._path(statement.module)
        parts = module.split(".") if path.endswith("__init__.py") else module.split(".")[:-1]
        base = parts[: len(parts) - statement.level + 1]
        return self._path(".".join([*base, *((statement.module or "").split(".") if statement.module else [])]))

    def _path(self, module: str) -> str | None:
        plain = module.replace(".", "/")
        for candidate in (f"{plain}.py", f"{plain}/__init__.py"):
            if candidate in self._files:
                return candidate
        return None

    def _tree(self, path: str) -> ast.Module:
        known = self._trees.get(path)
        if known is None:
            known = self._trees[path] = ast.parse(self._read(path))
        return known


def history_document(wheels: list[Sources], existing: Mapping[str, Iterable[str]]) -> dict[str, object]:
    """`since`: version → names that are in it and all later ones and in none before; `until`: the last version that
    has a name which the newest lacks. Names are grouped by module: `torch.nn: A B C`.

    `existing`: what the newest version answers to when it is asked, by module; sources bind names that are deleted
    again, and stubs list what a build leaves out.
    """
    really = {module: frozenset(listed) for module, listed in existing.items()}
    ordered = sorted(wheels, key=lambda wheel: wheel.release)
    newest = ordered[-1]
    since: dict[str, dict[str, list[str]]] = {}
    until: dict[str, dict[str, list[str]]] = {}
    for module in (*MODULES, *_MORE_MODULES):
        every = {name for wheel in ordered for name in wheel.names.get(module, ()) if _is_of_interest(module, name)}
        for name in sorted(every):
            has = [name in wheel.names.get(module, ()) for wheel in ordered]
            if has[-1] and not has[0]:
                first = has.index(True)
                # Before that, the stubs were of another kind, and a name missing there proves nothing.
                lasting = all(has[first:]) and name in really.get(module, ())
                if lasting and ordered[first].release >= _FIRST_COMPARABLE:
                    since.setdefault(_minor(ordered[first]), {}).setdefault(module, []).append(name)
            elif not has[-1] and module in newest.names and name not in really.get(module, ()):
                last = len(has) - 1 - has[::-1].index(True)
                until.setdefault(_minor(ordered[last]), {}).setdefault(module, []).append(name)
    return {
        "torch": newest.version,
        "versions": [_minor(wheel) for wheel in ordered],
        "since": {version: _joined(table) for version, table in since.items()},
        "until": {version: _joined(table) for version, table in until.items()},
    }


def _is_of_interest(module: str, name: str) -> bool:
    return not name.startswith("_") or (module == "torch" and name == "_six")


def _joined(table: dict[str, list[str]]) -> dict[str, str]:
    return {module: " ".join(names) for module, names in sorted(table.items())}


def _minor(wheel: Sources) -> str:
    return ".".join(map(str, wheel.release))


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    """Names that statements define themselves, in whatever branch."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield statement.name
            continue
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        for target in targets:
            for node in ast.walk(target):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield node.id
        for field in ("body", "orelse", "finalbody"):
            yield from _defined(getattr(statement, field, []))
        for handler in getattr(statement, "handlers", ()):
            yield from _defined(handler.body)


def _imports_of(tree: ast.Module) -> Iterator[ast.alias]:
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and (statement.level or (statement.module or "").startswith("torch")):
            yield from statement.names


def _exported(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr)):
            told = list(ast.walk(statement))
            if any(isinstance(node, ast.Name) and node.id == "__all__" for node in told):
                found.update(n.value for n in told if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return {name for name in found if name.isidentifier()}
