"""Stand-ins for third-party modules that are not installed, so that the rest of a package can be imported.

A package whose `__init__` imports one module that imports torchvision would otherwise be lost whole. Only names whose
absence made an import fail get a stand-in, and only in a fresh process before its first import of submitted code:
optional dependencies, which are imported inside `try`, stay absent. A stand-in can be imported from, subclassed,
annotated with and used as a bare decorator; whoever calls it for anything else gets `MissingDependencyError`, which
names the module, so nothing is computed with it.
"""

from __future__ import annotations

import importlib.machinery
import inspect
import sys
from collections.abc import Collection, Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any, Final


class MissingDependencyError(ImportError):
    """Something of a module that is not installed was really needed: `used`, of the module `name`."""

    def __init__(self, name: str, used: str) -> None:
        super().__init__(f"{name} is not installed, and {used} is needed", name=name)
        self.used = used


class _StandInType(type):
    """The class of everything that a stand-in module offers: attributes lead to further ones, calls refuse."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _offer(f"{cls.__module__}.{cls.__qualname__}", name)

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        if "_gradproof_stand_in" not in vars(cls):
            return super().__call__(*arguments, **keywords)  # a submitted class that inherits from a stand-in
        if len(arguments) == 1 and not keywords and inspect.isfunction(arguments[0]):
            return arguments[0]  # `@njit`: what it decorates is the submitted function itself
        raise _needed(cls)


def _needed(stand_in: type) -> MissingDependencyError:
    name = f"{stand_in.__module__}.{stand_in.__qualname__}"
    return MissingDependencyError(stand_in.__module__.partition(".")[0], name)


def _offer(owner: str, name: str) -> Any:
    def initialise(self: Any, *arguments: Any, **keywords: Any) -> None:
        # As a base beside torch.nn.Module it is passed over; as one that is given something to do it is missed.
        if arguments or keywords:
            raise _needed(offered)
        super(offered, self).__init__()

    members = {"__module__": owner, "__qualname__": name, "_gradproof_stand_in": True, "__init__": initialise}
    offered: Any = _StandInType(name, (), members)
    return offered


def stand_in_of(cls: type) -> type | None:
    """The stand-in that a class inherits from, if it does."""
    return next((base for base in cls.__mro__ if "_gradproof_stand_in" in vars(base)), None)


# What code asks of a module while it is imported: a version newer than it requires, and a place, where nothing is.
_VERSION: Final = "9999.0.0"


class _StandInModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return _VERSION
        if name == "__file__":
            return f"not-installed/{self.__name__.replace('.', '/')}/__init__.py"
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        offered = _offer(self.__name__, name)
        setattr(self, name, offered)  # the same object each time, as with a real module
        return offered


class StandIns(MetaPathFinder, Loader):
    """Finds stand-ins for these top-level names and everything below them; asked after all other finders."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] not in self._names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandInModule(spec.name, "Stands in for a module that is not installed.")

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def install(names: Collection[str]) -> None:
    """Put stand-ins for these top-level names into this process."""
    if names:
        sys.meta_path.append(StandIns(names))


def loaded() -> tuple[str, ...]:
    """The top-level names for which this process has imported a stand-in."""
    return tuple(
        sorted({name.partition(".")[0] for name, module in sys.modules.items() if type(module) is _StandInModule})
    )
