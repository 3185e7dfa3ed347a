"""Switches of the process that let float32 products keep fewer bits: what submitted code set them to, and off again."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe import simulated_device
from gradproof_probe.gradients.attribution import Place

_NAMED_IN_SOURCE: Final = re.compile(r"allow_tf32|fp32_precision|set_float32_matmul_precision|reduced_precision")


@dataclass(frozen=True, slots=True)
class _Switch:
    """`usual` is torch's own value, `full` the one that keeps all bits."""

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], Any]
    usual: Any
    full: Any


def _switches() -> list[_Switch]:
    """In the order in which they have to be set: the first sets others too."""
    core = torch._C
    found = [
        _Switch(
            "torch.set_float32_matmul_precision",
            torch.get_float32_matmul_precision,
            torch.set_float32_matmul_precision,
            "highest",
            "highest",
        )
    ]
    if hasattr(core, "_get_fp32_precision_getter"):  # torch 2.9 and newer; the older names read the same state
        found += [
            _Switch(
                f"torch.backends.{path}.fp32_precision",
                partial(core._get_fp32_precision_getter, "cuda", operation),
                partial(core._set_fp32_precision_setter, "cuda", operation),
                usual,
                "ieee",
            )
            for path, operation, usual in (
                ("cuda.matmul", "matmul", "none"),
                ("cudnn.conv", "conv", "tf32"),
                ("cudnn.rnn", "rnn", "tf32"),
            )
        ]
    else:
        found += [
            _Switch(
                "torch.backends.cuda.matmul.allow_tf32",
                core._get_cublas_allow_tf32,
                core._set_cublas_allow_tf32,
                usual=False,
                full=False,
            ),
            _Switch(
                "torch.backends.cudnn.allow_tf32",
                core._get_cudnn_allow_tf32,
                core._set_cudnn_allow_tf32,
                usual=True,
                full=False,
            ),
        ]
    return found


def _read() -> dict[str, Any]:
    values: dict[str, Any] = {}
    for switch in _switches():
        with contextlib.suppress(Exception):  # torch refuses to read what was set in its old and new ways at once
            values[switch.name] = switch.get()
    return values


def _write(values: dict[str, Any]) -> None:
    for switch in _switches():
        if switch.name in values:
            with contextlib.suppress(Exception):
                switch.set(values[switch.name])


def unusual() -> dict[str, Any]:
    """The switches that are not as torch has them when it is imported: name -> value."""
    usual = {switch.name: switch.usual for switch in _switches()}
    return {name: value for name, value in _read().items() if value != usual[name]}


@contextmanager
def preserved(changed: dict[str, Any]) -> Iterator[None]:
    """Put the switches back afterwards; those that were changed meanwhile are noted in `changed`."""
    before = _read()
    try:
        yield
    finally:
        after = _read()
        changed |= {name: value for name, value in after.items() if value != before.get(name)}
        if after != before:
            _write(before)


@contextmanager
def full_precision() -> Iterator[None]:
    """All switches off, that of the simulated device too."""
    before, simulated = _read(), simulated_device.SETTINGS["allow_tf32"]
    switch_off()
    try:
        yield
    finally:
        _write(before)
        simulated_device.SETTINGS["allow_tf32"] = simulated


def switch_off() -> None:
    """For good. Also between constructor and call, since a constructor can switch them on."""
    _write({switch.name: switch.full for switch in _switches()})
    simulated_device.SETTINGS["allow_tf32"] = False


def line_that_sets(source_root: Path, path: str) -> Place | None:
    """The first line of a submitted file that speaks of one of them."""
    try:
        lines = (source_root / path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    return next((Place(path, n) for n, line in enumerate(lines, 1) if _NAMED_IN_SOURCE.search(line)), None)
