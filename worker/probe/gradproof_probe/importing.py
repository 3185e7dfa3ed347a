"""Import the submitted module and find the target in it. Every way this can fail has its stable word.

Runs in the target's process only, which belongs to the submitted code from here on.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch

from gradproof_probe.harness.lost_imports import lost_base
from gradproof_probe.missing_modules import MissingDependencyError, stand_in_of
from gradproof_probe.request import Kind, Target

# Where the name on PyPI differs from the name that is imported; the usual ones of model code.
PYPI_NAMES: Final = {
    "cv2": "opencv-python",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "yaml": "pyyaml",
    "pkg_resources": "setuptools",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "dateutil": "python-dateutil",
    "google.protobuf": "protobuf",
    "ignite": "pytorch-ignite",
    "pytorch_lightning": "pytorch-lightning",
    "torch_geometric": "torch-geometric",
    "torch_scatter": "torch-scatter",
    "torch_sparse": "torch-sparse",
    "segmentation_models_pytorch": "segmentation-models-pytorch",
    "open_clip": "open-clip-torch",
    "umap": "umap-learn",
    "dotenv": "python-dotenv",
    "OpenGL": "PyOpenGL",
    "Bio": "biopython",
    "faiss": "faiss-cpu",
    "flash_attn": "flash-attn",
    "rdkit": "rdkit",
    "wandb": "wandb",
}


@dataclass(frozen=True, slots=True)
class Resolved:
    """The target, imported. `value` is the class or callable; `module` gives the names for expressions."""

    target: Target
    module: ModuleType
    value: Any


class NotRunnableError(Exception):
    """Why the target can't be run: `reason` is one of `NOT_RUN_REASONS`.

    `missing` is the top-level name of the third-party module whose absence made the import fail, if that was why.
    """

    def __init__(self, reason: str, detail: str, *, missing: str | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.missing = missing


def import_target(source_root: Path, target: Target) -> Resolved:
    """Raise `NotRunnableError` with the reason."""
    root = (source_root / target.import_root).resolve()
    sys.path.insert(0, str(root))
    sys.path += outer_roots(source_root, root)
    sys.argv = [str(source_root / target.path)]
    warnings.simplefilter("ignore")
    own_process = os.getpid()
    try:
        module = _import(source_root, target)
    except MissingDependencyError as error:
        raise NotRunnableError("missing dependency", f"{error}; needed by {_asker(error)}") from error
    except ModuleNotFoundError as error:
        raise _missing(error, root) from error
    except SystemExit as error:
        raise NotRunnableError(
            "import failed", f"importing {target.module} calls sys.exit({error.code!r}) instead of defining its names"
        ) from error
    except MemoryError as error:
        raise NotRunnableError("out of memory", f"importing {target.module} raised MemoryError") from error
    except BaseException as error:
        raise NotRunnableError("import failed", f"importing {target.module} raised {describe_error(error)}") from error
    finally:
        if os.getpid() != own_process:
            os._exit(0)  # a module that forks comes back twice: the copy must not speak for the target
    value = _find(module, target)
    if target.guessed:
        target = replace(target, kind=_kind_of(value))
    _confirm_kind(value, target)
    return Resolved(target, module, value)


def outer_roots(source_root: Path, root: Path) -> list[str]:
    """The directories around an import root, up to the source's, from within: they are asked last.

    A folder without `__init__.py` is an import root by its looks. As a part of a namespace package it isn't one, and
    its files import the whole package by name.
    """
    outer = source_root.resolve()
    if root == outer or not root.is_relative_to(outer):
        return []
    return [str(parent) for parent in root.parents if parent.is_relative_to(outer)]


def _import(source_root: Path, target: Target) -> ModuleType:
    top = target.module.partition(".")[0]
    loaded = sys.modules.get(top)
    if loaded is not None and not _inside(loaded, source_root):
        # A submitted random.py or types.py: the name is taken by a module that torch itself needs.
        return _import_under_alias(source_root / target.path, f"_submitted_{target.module.replace('.', '_')}")
    importlib.invalidate_caches()
    module = importlib.import_module(target.module)
    if not _inside(module, source_root):
        raise ImportError(f"the name {target.module!r} leads to {getattr(module, '__file__', None)}, not to the source")
    return module


def _import_under_alias(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} can't be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _inside(module: ModuleType, source_root: Path) -> bool:
    places = [getattr(module, "__file__", None), *list(getattr(module, "__path__", []) or [])]
    return any(place and Path(place).resolve().is_relative_to(source_root.resolve()) for place in places)


def on_pypi(name: str) -> str:
    """` (on PyPI: …)` for a module whose package is called otherwise, else nothing."""
    top = name.partition(".")[0]
    pypi = PYPI_NAMES.get(name) or PYPI_NAMES.get(top, top)
    return f" (on PyPI: {pypi})" if pypi != top else ""


def _missing(error: ModuleNotFoundError, root: Path) -> NotRunnableError:
    name = error.name or ""
    top = name.partition(".")[0]
    own = top and ((root / top).is_dir() or (root / f"{top}.py").is_file())
    if not top or own or top in sys.stdlib_module_names:
        return NotRunnableError("import failed", describe_error(error))
    hint = on_pypi(name)
    detail = f"No module named {top!r}{hint}; needed by {_asker(error)}"
    return NotRunnableError("missing dependency", detail, missing=top)


def _asker(error: BaseException) -> str:
    """The submitted line that asked for it: the last frame that isn't the import system's own."""
    place = "the submitted module"
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith("<frozen") and "gradproof_probe" not in code.co_filename:
            place = f"{Path(code.co_filename).name}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place


def _kind_of(value: Any) -> Kind:
    if isinstance(value, type) and issubclass(value, torch.nn.Module):
        return "module"
    is_function = isinstance(value, type) and issubclass(value, torch.autograd.Function)
    return "autograd_function" if is_function else "function"


def _find(module: ModuleType, target: Target) -> Any:
    if "<locals>" in target.qualname:
        raise NotRunnableError("not a target after all", f"{target.qualname} exists only inside a function")
    value: Any = module
    for part in target.qualname.split("."):
        try:
            value = getattr(value, part)
        except AttributeError as error:
            raise NotRunnableError(
                "name absent after import", f"{target.module} has no {target.qualname} (defined under a condition?)"
            ) from error
    return value


def _confirm_kind(found: Any, target: Target) -> None:
    value: Any = found
    if target.kind == "module":
        if not (isinstance(found, type) and issubclass(found, torch.nn.Module)):
            if isinstance(found, type) and (base := stand_in_of(found)) is not None:
                top = base.__module__.partition(".")[0]
                detail = f"{top}{on_pypi(top)} is not installed, and {base.__module__}.{base.__qualname__} is a base"
                raise NotRunnableError("missing dependency", f"{detail} of {target.qualname}")
            if isinstance(found, type) and (name := lost_base(found)) is not None:
                top = name.partition(".")[0]
                detail = f"{top}{on_pypi(top)} is not installed, and {name} is a base of {target.qualname}"
                raise NotRunnableError("missing dependency", detail)
            raise NotRunnableError("not a target after all", f"{target.qualname} is no torch.nn.Module class")
        if inspect.isabstract(value):
            names = ", ".join(sorted(value.__abstractmethods__))
            raise NotRunnableError("abstract", f"{target.qualname} leaves abstract: {names}")
        if value.forward is torch.nn.Module.forward:
            raise NotRunnableError("no forward", f"{target.qualname} defines no forward")
        if _only_raises(value.forward):
            raise NotRunnableError("abstract", f"{target.qualname}.forward only raises NotImplementedError")
    elif target.kind == "autograd_function":
        if not (isinstance(found, type) and issubclass(found, torch.autograd.Function)):
            raise NotRunnableError("not a target after all", f"{target.qualname} is no torch.autograd.Function class")
        if value.forward is torch.autograd.Function.forward:
            raise NotRunnableError("no forward", f"{target.qualname} defines no forward")
    elif not callable(found) or isinstance(found, type):
        raise NotRunnableError("not a target after all", f"{target.qualname} is no function")


def _only_raises(function: Any) -> bool:
    """Whether a body is `raise NotImplementedError` and nothing else (constants and names tell without its source)."""
    code = getattr(function, "__code__", None)
    return (
        code is not None
        and code.co_names == ("NotImplementedError",)
        and set(code.co_varnames) <= {*inspect.signature(function).parameters}
        and len(code.co_code) < 60  # load, call, raise: 2 to 3 dozen bytes on 3.11 to 3.14
    )


def describe_error(error: BaseException, limit: int = 500) -> str:
    try:
        text = " ".join(str(error).split())
    except BaseException:  # an exception class of the submitted code may raise in __str__
        text = "(its text can't be read)"
    name = type(error).__name__
    return f"{name}: {text[:limit]}" if text else name
