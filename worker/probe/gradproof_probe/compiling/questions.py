"""Code that asks whether it is compiled: plain execution with the answer `yes` shows whether that is the difference."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch

from gradproof_probe.gradients.attribution import Place, relative

_ASKING: Final = (
    (torch.compiler, "is_compiling"),
    (torch.compiler, "is_dynamo_compiling"),
    (torch._utils, "is_compiling"),
    (torch._dynamo.external_utils, "is_compiling"),
    (torch._dynamo, "is_compiling"),
)


@contextmanager
def answered_yes(source_root: Path) -> Iterator[list[Place]]:
    """Submitted code is told that it is compiled; yields the lines that ask, in the order of asking."""
    asked: list[Place] = []
    originals = [(owner, name, getattr(owner, name)) for owner, name in _ASKING if hasattr(owner, name)]

    def instead(original: Callable[[], bool]) -> Callable[[], bool]:
        def answer() -> bool:
            frame = sys._getframe(1)
            path = relative(frame.f_code.co_filename, source_root)
            if path is None:
                return bool(original())
            asked.append(Place(path, frame.f_lineno))
            return True

        return answer

    changed: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, original in originals:
            said = instead(original)
            changed.append((owner, name, original))
            setattr(owner, name, said)
            for module in _submitted_modules(source_root):
                for own, value in list(vars(module).items()):
                    if value is original:
                        changed.append((module, own, original))
                        setattr(module, own, said)
        yield asked
    finally:
        for owner, name, original in reversed(changed):
            setattr(owner, name, original)


def _submitted_modules(source_root: Path) -> list[ModuleType]:
    return [
        module
        for module in list(sys.modules.values())
        if isinstance(module, ModuleType)
        and isinstance(file := getattr(module, "__file__", None), str)
        and relative(file, source_root) is not None
    ]
