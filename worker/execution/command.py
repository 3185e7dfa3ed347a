"""How the probe is started in a sandbox, whatever it is asked for. Knows no targets."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from worker.devices import Gpu
from worker.devices.sandboxing import device_environment, device_nodes
from worker.execution.batch import Device
from worker.sandbox.model import REQUEST, Command, Mode

# Start of the interpreter, import of torch and Dynamo, and the last lines: 5 s here, ten times that on a busy machine.
START_ALLOWANCE_S: Final = 60.0
_SOURCE: Final = "/source"
_PROBE: Final = "/gradproof"
_LAYER: Final = "/layer"
_HEADERS: Final = "/headers"
_KERNELS: Final = "/kernels"


def probe_directory() -> Path:
    """The directory that holds the package `gradproof_probe`, which is never imported here."""
    spec = importlib.util.find_spec("gradproof_probe")
    if spec is None or spec.origin is None:
        raise RuntimeError("this installation lacks its probe: install Gradproof again")
    return Path(spec.origin).parent


@cache
def probe_digest() -> str:
    """A digest of the files of the probe."""
    directory = probe_directory()
    digest = hashlib.sha256()
    for file in sorted(directory.rglob("*.py")):
        digest.update(file.relative_to(directory).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def probe_command(
    source: Path,
    python: Path,
    mode: Mode,
    asked: Mapping[str, object],
    *,
    device: Device = "cpu",
    seed: int = 0,
    layer: Path | None = None,
    gpu: Gpu | None = None,
    headers: Path | None = None,
    kernels: Path | None = None,
) -> Command:
    """The probe over the snapshot at `source`; `asked` holds the keys of the request that say what for.

    `gpu` is the one device that it sees, with `device="cuda"`.
    Packages of a `layer` come last on the path: they add to what the interpreter has and can't hide any of it.
    `headers` and `kernels` are lent to inductor (`compiled_headers`, `kept_kernels`).
    """
    probe = probe_directory()
    confined = mode is not Mode.OFF
    path_entry = _PROBE if confined else str(probe.parent)
    request = {
        "protocol": 1,
        "source_root": _SOURCE if confined else str(source),
        "device": device,
        "seed": seed,
        "isolated": confined,
        **asked,
    }
    lent = {
        name: (place, inside)
        for name, place, inside in (
            ("GRADPROOF_COMPILED_HEADERS", headers, _HEADERS),
            ("GRADPROOF_KEPT_KERNELS", kernels, _KERNELS),
        )
        if place is not None
    }
    layered = "" if layer is None else f"sys.path.append({_LAYER if confined else str(layer)!r}); "
    start = f"import sys; sys.path.insert(0, {path_entry!r}); {layered}from gradproof_probe.main import main; main()"
    return Command(
        interpreter=python,
        argv=(str(python), "-I", "-c", start, REQUEST),
        request=json.dumps(request).encode(),
        device_nodes=device_nodes(device, gpu),
        read_only={
            source: _SOURCE,
            probe: f"{_PROBE}/gradproof_probe",
            **({} if layer is None else {layer: _LAYER}),
            **dict(lent.values()),
        },
        environment={**device_environment(device, gpu), **{name: inside for name, (_, inside) in lent.items()}},
    )
