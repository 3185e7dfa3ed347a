"""Which GPUs this machine has, what they hold and who uses them: the driver's own answer, `nvidia-smi -q -x`.

The program is a setting (`GRADPROOF_NVIDIA_SMI`), the one door through which anything about a GPU comes in; torch and
the driver's libraries are never loaded here. This module must not know jobs or leases.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from worker.devices.errors import InventoryError, NoSuchDeviceError

# Without persistence mode the driver initialises every GPU for the answer: about a second each.
ANSWER_S: Final = 30.0
_MIB: Final = 2**20
_UUID: Final = re.compile(r"GPU-[0-9A-Za-z-]{1,64}")
# The control files that every process with a CUDA context opens (service facts 5.5).
_SHARED_NODES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
# Compute, and both: a display server (G) is no competitor.
_COMPUTES: Final = ("C", "C+G", "M+C", "M+C+G")


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process that computes on a GPU. In a container the driver's process ids are the host's."""

    pid: int
    name: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU at one moment. `index` counts as nvidia-smi does; sizes in bytes; `minor` names its file in /dev.

    `unusable` says why nothing can be run there, and is empty as a rule.
    """

    uuid: str
    index: int
    minor: int | None
    name: str
    memory: int
    used: int
    processes: tuple[DeviceProcess, ...] = ()
    unusable: str = ""

    def nodes(self, devices: Path = Path("/dev")) -> tuple[str, ...]:
        """The device files that a sandbox must see so that CUDA works inside: of this GPU and of the driver."""
        own = () if self.minor is None else (f"nvidia{self.minor}",)
        return tuple(str(devices / name) for name in (*own, *_SHARED_NODES) if (devices / name).exists())


def read_inventory(command: str, *, answer_s: float = ANSWER_S) -> tuple[Gpu, ...]:
    """The GPUs that `command` lists. Raises `InventoryError` if it is not there, fails, hangs or makes no sense."""
    try:
        done = subprocess.run(
            [command, "-q", "-x"], stdin=subprocess.DEVNULL, capture_output=True, timeout=answer_s, check=False
        )
    except FileNotFoundError as error:
        raise InventoryError(f"{command} is not installed: without it no GPU can be given out") from error
    except subprocess.TimeoutExpired as error:
        raise InventoryError(f"{command} gave no answer within {answer_s:g} s: the driver hangs") from error
    except OSError as error:
        raise InventoryError(f"{command} can't be run: {error.strerror or error}") from error
    if done.returncode != 0:
        said = (done.stdout.strip() or done.stderr.strip()).decode("utf-8", "replace")[:300]
        raise InventoryError(f"{command} failed with {done.returncode}: {said or 'it said nothing'}")
    return parse_inventory(done.stdout)


def parse_inventory(text: bytes | str) -> tuple[Gpu, ...]:
    """The GPUs of the XML that nvidia-smi writes. Raises `InventoryError` if it is something else."""
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - the answer of the driver's own program
    except ElementTree.ParseError as error:
        raise InventoryError(f"the answer of nvidia-smi is no XML: {error}") from error
    found = []
    for index, element in enumerate(root.iter("gpu")):
        uuid = _text(element, "uuid")
        if not _UUID.fullmatch(uuid):  # it becomes part of the name of a file
            raise InventoryError(f"nvidia-smi lists a GPU without its UUID: {uuid or 'nothing'}")
        minor = _text(element, "minor_number")
        in_slices = _text(element, "mig_mode/current_mig") == "Enabled"
        found.append(
            Gpu(
                uuid=uuid,
                index=index,
                minor=int(minor) if minor.isdecimal() else None,
                name=_text(element, "product_name") or "GPU",
                memory=_bytes(element, "fb_memory_usage/total"),
                used=_bytes(element, "fb_memory_usage/used"),
                processes=tuple(_processes(element)),
                unusable="it is cut into MIG slices, which are not given out" if in_slices else "",
            )
        )
    return tuple(found)


def visible(gpus: Sequence[Gpu], environment: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
    """Those that `CUDA_VISIBLE_DEVICES` leaves to this process: indices, or UUIDs or their beginnings."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return tuple(gpus)
    words = [word.strip() for word in listed.split(",") if word.strip()]
    return tuple(gpu for gpu in gpus if any(_is_named(gpu, word) for word in words))


def chosen(gpus: Sequence[Gpu], asked: str | None) -> tuple[Gpu, ...]:
    """Those that `asked` means: `cuda:1` or `1` (as nvidia-smi counts), a UUID or its beginning; None: any.

    Raises `NoSuchDeviceError` if it means none.
    """
    if asked is None:
        return tuple(gpus)
    found = tuple(gpu for gpu in gpus if _is_named(gpu, asked.removeprefix("cuda:")))
    if not found:
        there = ", ".join(f"cuda:{gpu.index} ({gpu.uuid})" for gpu in gpus) or "none"
        raise NoSuchDeviceError(f"there is no device {asked!r} here: there is {there}", device=asked)
    return found


def driver_libraries(environment: Mapping[str, str] = os.environ) -> str:
    """What of LD_LIBRARY_PATH holds the driver's library and lies below /usr, which is all that a sandbox sees.

    Some container runtimes put it into /usr/local/nvidia/lib64 and name that there instead of telling the loader.
    """
    places = [Path(word) for word in environment.get("LD_LIBRARY_PATH", "").split(":") if word.startswith("/usr/")]
    return ":".join(str(place) for place in places if (place / "libcuda.so.1").exists())


def _is_named(gpu: Gpu, word: str) -> bool:
    if word.isdecimal():
        return gpu.index == int(word)
    return len(word) > len("GPU-") and gpu.uuid.startswith(word)


def _text(element: ElementTree.Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _bytes(element: ElementTree.Element, path: str) -> int:
    match = re.fullmatch(r"(\d+) MiB", _text(element, path))
    if match is None:
        raise InventoryError(f"nvidia-smi does not say {path} of {_text(element, 'uuid')}: {_text(element, path)!r}")
    return int(match[1]) * _MIB


def _processes(element: ElementTree.Element) -> list[DeviceProcess]:
    return [
        DeviceProcess(int(pid), _text(item, "process_name") or "?")
        for item in element.iterfind("processes/process_info")
        if (pid := _text(item, "pid")).isdecimal() and (_text(item, "type") or "C") in _COMPUTES
    ]
