"""An attribute of a class replaced for a while, and put back as it was: own or inherited."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_ABSENT: Final = object()


@contextmanager
def replaced(owner: type, name: str, value: Any) -> Iterator[None]:
    before = vars(owner).get(name, _ABSENT)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
