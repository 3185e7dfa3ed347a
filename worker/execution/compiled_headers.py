"""Inductor's header, compiled once for an interpreter instead of in every sandbox.

Inductor compiles the header of its kernels before the first of them: 5 s of CPU and 156 MB of the sandbox's memory,
with every fresh cache. What it makes is the same each time, so it is made here, out of torch alone, beside the first
batch and behind it (niceness 5), and shown read-only to later sandboxes. Nothing that submitted code wrote ever comes
here. Whatever goes wrong costs the time that it would have saved: this module never raises for it.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger(__name__)

# As the probe sets it (`gradproof_probe.supervisor`): other flags would make another header.
_SCRIPT: Final = """\
import os
os.nice(5)
os.environ.update(TORCHINDUCTOR_COMPILE_THREADS="1", TORCHINDUCTOR_VEC_ISA_OK="1", OMP_NUM_THREADS="1")
import torch
torch.set_num_threads(1)
torch.compile(lambda x: x.sin() + 1)(torch.ones(64))
"""
_COMPILER_PATH: Final = "/usr/bin:/bin"  # what a sandbox shows
# Of interpreters, torch versions and compilers that are in use at once; each takes 156 MB.
_KEPT: Final = 3
_SCRATCH: Final = ".making-"


@dataclass(slots=True)
class _Making:
    """`turn` is a lock on the directory that is held until it is over: one process at a time makes them."""

    process: subprocess.Popen[bytes]
    scratch: Path
    turn: int


_making: dict[Path, _Making | None] = {}  # None: it was tried in this process, and is over
_lock = threading.Lock()


def compiled_headers(python: Path, home: Path) -> Path | None:
    """Where the compiled headers for this interpreter lie; None as long as they are not made, which this begins."""
    key = toolchain(python)
    if key is None:
        return None
    with _lock:
        place = home / key
        try:
            if not place.is_dir():
                _go_on(python, place)
        except BlockingIOError:
            _making[place] = None  # another process is making some: they are there for the next batch, or the next run
        except OSError as error:
            log.info("headers_not_compiled", reason=str(error))
            _making[place] = None
        return place if place.is_dir() else None


def toolchain(python: Path) -> str | None:
    """What compiled code depends on: the interpreter and its torch, the compiler, the processor; None without one."""
    compiler = shutil.which("g++", path=_COMPILER_PATH)
    if compiler is None:
        return None
    parts = [_stamp(file) for file in (python.resolve(), Path(compiler).resolve(), *_torch_of(python))]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        parts += [line for line in lines if line.startswith(("flags", "Features"))][:1]
    return hashlib.sha256("\n".join([str(python), *parts]).encode()).hexdigest()[:32]


def _torch_of(python: Path) -> list[Path]:
    """The file of the interpreter's torch that changes with each version of it."""
    return sorted(python.parent.parent.glob("lib/python3*/site-packages/torch/version.py"))


def _stamp(file: Path) -> str:
    try:
        status = file.stat()
    except OSError:
        return str(file)
    return f"{file} {status.st_size} {status.st_mtime_ns}"


def _go_on(python: Path, place: Path) -> None:
    if place in _making:
        _end_if_done(place)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    turn = os.open(place.parent, os.O_RDONLY)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError where another process is making some
        _making[place] = _begin(python, place.parent, turn)
    except OSError:
        os.close(turn)
        raise


def _begin(python: Path, home: Path, turn: int) -> _Making:
    _remove_old(home)
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=home))
    inside = {"PATH": _COMPILER_PATH, "HOME": str(scratch), "TMPDIR": str(scratch), "USER": "gradproof", "LANG": "C"}
    process = subprocess.Popen(
        [str(python), "-I", "-c", _SCRIPT],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=inside,
        start_new_session=True,
    )
    return _Making(process, scratch, turn)


def _end_if_done(place: Path) -> None:
    making = _making[place]
    if making is None or making.process.poll() is None:
        return
    _making[place] = None
    found = sorted(making.scratch.glob("torchinductor_*/precompiled_headers"))
    if making.process.returncode == 0 and found and any(found[0].glob("*.gch")):
        shutil.rmtree(found[0] / "locks", ignore_errors=True)
        _make_readable(found[0])
        found[0].rename(place)
    else:
        log.info("headers_not_compiled", reason=f"the interpreter ended with {making.process.returncode}")
    _abandon(making)


def _make_readable(directory: Path) -> None:
    """For the uid of a sandbox, which is not ours."""
    directory.chmod(0o755)
    for file in directory.iterdir():
        file.chmod(0o644)


def _abandon(making: _Making) -> None:
    """Leave nothing behind."""
    if making.process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(making.process.pid, signal.SIGKILL)
        making.process.wait()
    shutil.rmtree(making.scratch, ignore_errors=True)
    os.close(making.turn)


@atexit.register
def _abandon_all() -> None:
    """This process ends: what is made by now is kept, and nobody is left to take what is not."""
    for place, making in list(_making.items()):
        with contextlib.suppress(OSError):
            _end_if_done(place)
        if making is not None and _making[place] is not None:
            _abandon(making)


def _remove_old(home: Path) -> None:
    """What processes that were killed left half done, and the longest unused. Only in our turn."""
    for scratch in home.glob(f"{_SCRATCH}*"):
        shutil.rmtree(scratch, ignore_errors=True)
    made = [path for path in home.iterdir() if not path.name.startswith(".")]
    for path in sorted(made, key=lambda path: path.stat().st_mtime)[: -(_KEPT - 1)]:
        shutil.rmtree(path, ignore_errors=True)
