"""What this machine can do for Gradproof, part by part: the facts that `gradproof doctor` prints.

Collects and judges; rendering is the command line's. torch is never loaded here: the interpreter that runs checks is
asked in a process of its own. No answer holds a password.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import redis
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from services.database import build_engine
from services.database.migrate import require_current
from services.jobs.broker import build_broker
from services.problems import GradproofError
from services.settings import Settings
from worker.devices import InventoryError, read_inventory
from worker.devices.lease import holder, lock_directory
from worker.devices.leftovers import in_use
from worker.doctor_forges import examine_forges
from worker.doctor_reader import examine_reader
from worker.environments.build import uv_executable
from worker.execution.kept_kernels import amount
from worker.sandbox import Capability, detect
from worker.sandbox.bubblewrap import HOW_TO_GET_IT, SYSTEM_PATH, numbers
from worker.sandbox.model import Mode

# The first git that knows all of safe.bareRepository, transfer.bundleURI and http.curloptResolve.
_GIT: Final = (2, 38)
# What the probe is written for.
_TORCH: Final = (2, 4)
# A snapshot takes up to 200 MB, compiled code of a batch up to 1 GiB of temporary space in memory, not on disk.
_DISK: Final = 2 * 2**30
_GIB: Final = 2**30
# A cold `import torch` from a slow disk takes half a minute.
_TORCH_WITHIN_S: Final = 120
_ANSWER_WITHIN_S: Final = 5
_ASK_TORCH: Final = """
import json, sys
answer = {"python": sys.version.split()[0]}
try:
    import torch
except ImportError as error:
    answer["reason"] = str(error)
else:
    answer |= {"torch": torch.__version__, "built_for": torch.version.cuda, "threads": torch.get_num_threads()}
    answer["cuda"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
print(json.dumps(answer))
"""


class State(StrEnum):
    """How a part is: `warning` works but less well or less safely; `missing` does not work at all."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class DoctorLine:
    """One part: what was found, and what to do about it (empty when there is nothing to do)."""

    name: str
    state: State
    detail: str
    remedy: str = ""


def examine(settings: Settings, python: Path | None = None) -> list[DoctorLine]:
    """All parts, in the order in which a run needs them. `python` is the interpreter that runs checks, ours if None.

    Takes some seconds: torch is imported once, a sandbox is tried, servers are asked.
    """
    interpreter = python or Path(sys.executable)
    torch = _ask_torch(interpreter)
    return [
        _python(),
        _torch(interpreter, torch),
        *_sandbox(settings),
        _compiler(),
        _devices(settings, torch),
        *_gpus(settings),
        _database(settings),
        _broker(settings),
        _git(),
        _environment(settings),
        _kept_kernels(settings),
        _disk(settings),
        *_forges(settings),
    ]


def _python() -> DoctorLine:
    return DoctorLine("python", State.OK, f"{platform.python_version()} at {sys.executable}")


def _ask_torch(interpreter: Path) -> dict[str, Any]:
    # Only what a dynamic loader or a driver needs to find CUDA; nothing of ours.
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "LD_LIBRARY_PATH", "HOME"}}
    try:
        answer = subprocess.run(
            [str(interpreter), "-I", "-c", _ASK_TORCH],
            env=kept, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TORCH_WITHIN_S, check=True,
        )  # fmt: skip
        found = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return {"reason": str(error)}
    return found if isinstance(found, dict) else {"reason": "no answer"}


def _torch(interpreter: Path, answer: dict[str, Any]) -> DoctorLine:
    version = answer.get("torch")
    if version is None:
        return DoctorLine(
            "torch", State.MISSING, f"{interpreter} can't import torch: {answer.get('reason')}",
            "pip install 'gradproof[runtime]', or name an interpreter that has torch (--python)",
        )  # fmt: skip
    detail = f"{version} in {interpreter} (Python {answer['python']}, {answer['threads']} threads)"
    if _leading_numbers(str(version)) < _TORCH:
        return DoctorLine("torch", State.WARNING, detail, "the checks are written for torch 2.4 and later")
    return DoctorLine("torch", State.OK, detail)


def _sandbox(settings: Settings) -> Iterator[DoctorLine]:
    capability = detect(settings)
    yield _mode(settings, capability)
    if capability.bwrap is None:
        yield DoctorLine("sandbox: bubblewrap", State.MISSING, "not found", HOW_TO_GET_IT)
    else:
        found = f"{capability.bwrap_version} from {capability.bwrap_origin} ({capability.bwrap})"
        yield DoctorLine("sandbox: bubblewrap", State.OK, found)
    if capability.seccomp:
        yield DoctorLine("sandbox: seccomp", State.OK, "the filter of system calls compiles")
    else:
        yield DoctorLine("sandbox: seccomp", State.MISSING, "libseccomp was not found", "apt-get install libseccomp2")
    yield _control_groups(capability)
    yield _user_namespaces(capability)
    if capability.mode is not None:
        works, detail = examine_reader(settings)
        remedy = "" if works else f"let everybody read {sys.prefix}, and where Gradproof is installed"
        yield DoctorLine("sandbox: reader", State.OK if works else State.MISSING, detail, remedy)


def _mode(settings: Settings, capability: Capability) -> DoctorLine:
    if not settings.sandbox:
        return DoctorLine(
            "sandbox", State.WARNING, "switched off: submitted code runs with all rights of the worker",
            "unset GRADPROOF_SANDBOX unless all code that you check is your own",
        )  # fmt: skip
    if capability.mode is None:
        return DoctorLine(
            "sandbox", State.MISSING, "; ".join(capability.reasons),
            "see the parts below; --no-sandbox runs without one, for code that you would run yourself",
        )  # fmt: skip
    what = {
        Mode.ROOT: "mode R: root hands each job a uid of its own",
        Mode.USER: "mode U: an unprivileged user namespace",
    }.get(capability.mode, str(capability.mode))
    passed_over = f"; not to be had: {'; '.join(capability.reasons)}" if capability.reasons else ""
    return DoctorLine("sandbox", State.OK, f"{what} (a trial run succeeded){passed_over}")


def _control_groups(capability: Capability) -> DoctorLine:
    name = "sandbox: control groups"
    if capability.cgroup_version is None:
        return DoctorLine(
            name, State.WARNING, "; ".join(capability.warnings),
            "run the worker as a service with Delegate=yes, or as root, so that memory is bounded exactly",
        )  # fmt: skip
    detail = f"version {capability.cgroup_version}: {', '.join(capability.cgroup_controllers)}"
    absent = {"memory", "pids", "cpu"} - set(capability.cgroup_controllers)
    if absent:
        return DoctorLine(
            name, State.WARNING, f"{detail}; without {', '.join(sorted(absent))}", "delegate these controllers, too"
        )
    return DoctorLine(name, State.OK, detail)


def _user_namespaces(capability: Capability) -> DoctorLine:
    name = "sandbox: user namespaces"
    if capability.user_namespaces:
        return DoctorLine(name, State.OK, f"up to {capability.user_namespaces}")
    state = State.OK if capability.mode is Mode.ROOT else State.MISSING
    remedy = "" if state is State.OK else "sysctl -w user.max_user_namespaces=10000"
    return DoctorLine(name, state, "the kernel allows none", remedy)


def _compiler() -> DoctorLine:
    # Inside a sandbox, /usr is all there is: a compiler elsewhere on our own PATH does not help.
    found = shutil.which("g++", path=SYSTEM_PATH)
    version = _first_line([found, "--version"]) if found else None
    if version is None:
        return DoctorLine(
            "compiler", State.WARNING, "no g++ below /usr: inductor can't be compared", "apt-get install g++"
        )
    return DoctorLine("compiler", State.OK, f"{version} ({found})")


def _devices(settings: Settings, answer: dict[str, Any]) -> DoctorLine:
    cards = [str(card) for card in answer.get("cuda", [])]
    if cards:
        return DoctorLine("devices", State.OK, f"cpu; cuda: {', '.join(cards)}")
    nodes = sorted(Path("/dev").glob("nvidia[0-9]*"))
    if nodes and "torch" in answer:
        built = answer.get("built_for")
        return DoctorLine(
            "devices", State.WARNING, f"cpu; {nodes[0]} exists but torch sees no CUDA device",
            "check the driver (nvidia-smi)" if built else "this torch is built for the CPU only: install one for CUDA",
        )  # fmt: skip
    if settings.gpu_classes:
        return DoctorLine(
            "devices", State.WARNING, f"cpu only, though GRADPROOF_GPU_CLASSES names {', '.join(settings.gpu_classes)}",
            "start the workers of these classes on a machine that has the device",
        )  # fmt: skip
    return DoctorLine("devices", State.OK, "cpu; no CUDA device, so comparisons between devices are skipped")


def _gpus(settings: Settings) -> Iterator[DoctorLine]:
    """A line for each GPU: who holds it, and whether anybody could be given it."""
    try:
        gpus = read_inventory(settings.nvidia_smi)
    except InventoryError as error:
        if settings.gpu_classes or any(Path("/dev").glob("nvidia[0-9]*")):
            yield DoctorLine(
                "devices: nvidia-smi", State.MISSING, error.message,
                "install the driver's tools (in a container: the capability `utility`), or set GRADPROOF_NVIDIA_SMI",
            )  # fmt: skip
        return
    locks = lock_directory(settings.device_locks)
    for gpu in gpus:
        name = f"devices: cuda:{gpu.index}"
        detail = f"{gpu.name}, {gpu.uuid}, {gpu.used / _GIB:.1f} of {gpu.memory / _GIB:.0f} GiB in use"
        held = holder(gpu.uuid, locks)
        if gpu.unusable:
            yield DoctorLine(name, State.WARNING, f"{detail}; {gpu.unusable}", "switch MIG off for it")
        elif held is not None:
            yield DoctorLine(name, State.OK, f"{detail}; held by process {held or 'unknown'}")
        elif said := in_use(gpu):
            yield DoctorLine(name, State.WARNING, f"{detail}; {said}", "no worker takes it before that has ended")
        else:
            yield DoctorLine(name, State.OK, f"{detail}; free")


def _database(settings: Settings) -> DoctorLine:
    try:
        url = make_url(settings.effective_database_url)
    except ArgumentError:
        return DoctorLine("database", State.MISSING, "GRADPROOF_DATABASE_URL is not a database URL", "correct it")
    shown = url.render_as_string(hide_password=True)
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        return _to_be_made("database", shown, Path(str(url.database)).parent)
    try:
        engine = build_engine(settings)
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
        engine.dispose()
        require_current(settings)
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", error)).strip()
        return DoctorLine("database", State.MISSING, f"{shown}: {reason}", "start it, or set GRADPROOF_DATABASE_URL")
    except GradproofError as error:
        return DoctorLine("database", State.MISSING, f"{shown}: {error.message}", "gradproof db upgrade")
    return DoctorLine("database", State.OK, f"{shown} answers and is at this version")


def _broker(settings: Settings) -> DoctorLine:
    url = settings.effective_broker_url
    if url.startswith("filesystem:"):
        return _to_be_made("broker", "filesystem://", settings.data_dir)
    shown = re.sub(r"//[^/@]*@", "//***@", url)
    try:
        with build_broker(settings).connection_for_write() as connection:
            connection.ensure_connection(max_retries=0, timeout=_ANSWER_WITHIN_S, reraise_as_library_errors=False)
    except (OSError, ValueError, KeyError, ImportError, redis.RedisError) as error:
        return DoctorLine("broker", State.MISSING, f"{shown}: {error}", "start it, or set GRADPROOF_BROKER_URL")
    return DoctorLine("broker", State.OK, f"{shown} answers")


def _to_be_made(name: str, what: str, directory: Path, setting: str = "GRADPROOF_DATA_DIR") -> DoctorLine:
    """An embedded part needs a directory that we may write to, now or once it is made."""
    existing = _existing(directory)
    if os.access(existing, os.W_OK | os.X_OK):
        return DoctorLine(name, State.OK, f"{what} below {directory}")
    return DoctorLine(name, State.MISSING, f"{existing} is not writable for us", f"set {setting}")


def _git() -> DoctorLine:
    found = shutil.which("git")
    version = _first_line([found, "--version"]) if found else None
    if version is None:
        return DoctorLine("git", State.WARNING, "not found: nothing can be fetched by URL", "apt-get install git")
    if _leading_numbers(version) < _GIT:
        return DoctorLine("git", State.WARNING, f"{version} lacks safe.bareRepository", "git 2.38 or later is needed")
    return DoctorLine("git", State.OK, f"{version} ({found})")


def _environment(settings: Settings) -> DoctorLine:
    name = "environment"
    if settings.environment == "off":
        return DoctorLine(
            name, State.OK, "off: code is run beside what its Python has, and nothing is installed for it"
        )
    uv = uv_executable()
    version = _first_line([str(uv), "--version"]) if uv is not None else None
    if version is None:
        return DoctorLine(name, State.MISSING, "wheels, but uv was not found", "install Gradproof again")
    return _to_be_made(name, f"wheels, with {version}; kept", settings.environment_dir, "GRADPROOF_ENVIRONMENT_HOME")


def _kept_kernels(settings: Settings) -> DoctorLine:
    name = "kept kernels"
    if not settings.kept_kernels or not settings.sandbox:
        return DoctorLine(name, State.OK, "off: what inductor compiles is compiled again by each analysis")
    places = {
        settings.kept_kernels_directory: "workers",
        settings.own_kept_kernels_directory: "gradproof check",
    }
    told = []
    for place, whose in places.items():
        kept = amount(place)
        told.append(f"{whose}: {kept.size / 2**20:.1f} MiB of {kept.origins} in {place}")
    return DoctorLine(name, State.OK, f"at most {settings.kept_kernels_size / _GIB:.1f} GiB; {'; '.join(told)}")


def _disk(settings: Settings) -> DoctorLine:
    directory = _existing(settings.data_dir)
    free = shutil.disk_usage(directory).free
    detail = f"{free / _GIB:.1f} GiB free below {settings.data_dir}"
    if free < _DISK:
        return DoctorLine("disk", State.WARNING, detail, f"at least {_DISK // _GIB} GiB, or another GRADPROOF_DATA_DIR")
    return DoctorLine("disk", State.OK, detail)


def _forges(settings: Settings) -> Iterator[DoctorLine]:
    for name, works, detail, remedy in examine_forges(settings):
        yield DoctorLine(f"forge: {name}", State.OK if works else State.MISSING, detail, remedy)


def _existing(directory: Path) -> Path:
    return next(candidate for candidate in (directory, *directory.absolute().parents) if candidate.exists())


def _first_line(command: list[str]) -> str | None:
    try:
        answer = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_WITHIN_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = answer.stdout.decode("utf-8", "replace").splitlines()
    return lines[0] if lines else None


def _leading_numbers(words: str) -> tuple[int, ...]:
    match = re.search(r"\d+(\.\d+)+", words)
    return numbers(match.group()) if match else ()
