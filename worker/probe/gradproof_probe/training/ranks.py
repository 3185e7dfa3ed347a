"""Processes of one gloo group on this machine: each a forked child, which gives back tensors and words.

They meet by a file in the scratch directory and talk over the loopback interface, which the sandbox's own network
namespace has and which leads nowhere else. A rank that hangs ends with the deadline, and all of them with the first
process. The calling process must not have run a backward pass on a device. Nothing here knows targets or checks.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
from torch import distributed

from gradproof_probe.gradients.attribution import innermost
from gradproof_probe.importing import describe_error
from gradproof_probe.processes import LineWriter, watch

_LOOPBACK: Final = "lo"
# What gloo says in one rank when another has ended: the other's error is the one that tells.
_ECHOES: Final = ("closed by peer", "Connection", "Timed out", "timed out", "Broken pipe", "gloo/transport")
_POLL_S: Final = 0.005


@dataclass(slots=True)
class Found:
    """What one rank gives back. `error` with the place (path, line) of the submitted line that raised it."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    words: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    place: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Ranks:
    """`found`: by rank, None where one did not end well; then `why` says why, and `hung` that it ran out of time."""

    found: tuple[Found, ...] | None
    why: str = ""
    hung: bool = False
    place: tuple[str, int] | None = None
    could_not_start: bool = False


Work = Callable[[int, Found], None]


def run_ranks(work: Work, *, world: int, deadline: float, source_root: Path) -> Ranks:
    """`work(rank, found)` in each of `world` processes with an initialised default group; `deadline` is monotonic."""
    if not distributed.is_available() or not distributed.is_gloo_available():
        return Ranks(None, "this build of torch has no gloo", could_not_start=True)
    with tempfile.TemporaryDirectory(prefix="ranks-") as directory:
        home = Path(directory)

        def first(_: LineWriter) -> None:
            for rank in range(1, world):
                _fork(work, rank, world, home, deadline, source_root)
            _one_rank(work, 0, world, home, deadline, source_root)

        end = watch(first, deadline=lambda: deadline, on_line=lambda _: None)
        late = time.monotonic() >= deadline
        found = [_read(home / f"rank{rank}") for rank in range(world)]
    errors = [item for item in found if item is not None and item.error]
    telling = [item for item in errors if not any(echo in item.error for echo in _ECHOES)]
    if telling:
        item = telling[0]
        return Ranks(None, item.error, place=item.place, could_not_start="group" in item.words)
    if end.how == "timed_out" or errors or (late and None in found):
        return Ranks(None, "the ranks wait for each other: not all of them come to the same collective", hung=True)
    if not end.clean or any(item is None for item in found):
        return Ranks(None, f"the process of a rank {end.describe()}")
    return Ranks(tuple(item for item in found if item is not None))


def _fork(work: Work, rank: int, world: int, home: Path, deadline: float, source_root: Path) -> None:
    if os.fork():
        return
    try:
        _one_rank(work, rank, world, home, deadline, source_root)
    finally:
        os._exit(0)


def _await_others(home: Path, world: int, deadline: float) -> None:
    """No rank leaves while another may still talk to it. By files: a collective could meet one of the target's."""
    missing = {home / f"rank{rank}" for rank in range(world)}
    while missing and time.monotonic() < deadline:
        missing = {path for path in missing if not path.exists()}
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(-1, os.WNOHANG)[0]:  # another rank has ended, with or without a result
                return
        time.sleep(_POLL_S)


def _one_rank(work: Work, rank: int, world: int, home: Path, deadline: float, source_root: Path) -> None:
    found = Found()
    try:
        _join(rank, world, home, deadline)
    except Exception as error:
        found.error, found.words = f"the group can't be made: {describe_error(error, 300)}", {"group": True}
        _write(home / f"rank{rank}", found)
        return
    try:
        work(rank, found)
    except Exception as error:
        place = innermost(error.__traceback__, source_root)
        found.error = describe_error(error, 300)
        found.place = None if place is None else (place.path, place.line)
    _write(home / f"rank{rank}", found)
    if not found.error:
        _await_others(home, world, deadline)


def _join(rank: int, world: int, home: Path, deadline: float) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        GLOO_SOCKET_IFNAME=_LOOPBACK,
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_WORLD_SIZE=str(world),
    )
    patience = timedelta(seconds=max(1.0, deadline - time.monotonic()))
    store = distributed.FileStore(str(home / "store"), world)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=patience)


def _write(path: Path, found: Found) -> None:
    """Whole or not at all: a rank that is killed while it writes leaves nothing."""
    tensors = {name: value.detach().clone() for name, value in found.tensors.items()}
    content: Mapping[str, Any] = {
        "tensors": tensors,
        "words": found.words,
        "error": found.error,
        "place": None if found.place is None else list(found.place),
    }
    temporary = path.with_suffix(f".{os.getpid()}")
    torch.save(content, temporary)
    temporary.rename(path)


def _read(path: Path) -> Found | None:
    with contextlib.suppress(Exception):  # it comes from a process with submitted code
        content = torch.load(path, weights_only=True)
        place = content["place"]
        return Found(content["tensors"], content["words"], content["error"], None if place is None else tuple(place))
    return None
