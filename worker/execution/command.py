"""How the probe is started in a sandbox, whatever it is asked for. Knows no targets."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
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


def probe_directory() -> Path:
    """The directory that holds the package `gradproof_probe`, which is never imported here."""
    spec = importlib.util.find_spec("gradproof_probe")
    if spec is None or spec.origin is None:
        raise RuntimeError("this installation lacks its probe: install Gradproof again")
    return Path(spec.origin).parent


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
) -> Command:
    """The probe over the snapshot at `source`; `asked` holds the keys of the request that say what for.

    `gpu` is the one device that it sees, with `device="cuda"`.
    Packages of a `layer` come last on the path: they add to what the interpreter has and can't hide any of it.
    `headers` are lent to inductor (`compiled_headers`).
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
            **({} if headers is None else {headers: _HEADERS}),
        },
        environment={
            **device_environment(device, gpu),
            **({} if headers is None else {"GRADPROOF_COMPILED_HEADERS": _HEADERS}),
        },
    )
