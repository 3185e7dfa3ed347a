"""The request as frozen values. Reading it must not import torch: a wrong request is told at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from gradproof_probe.errors import RequestError
from gradproof_probe.protocol import FOUND_BY, PROTOCOL

Device = Literal["cpu", "cuda", "sim"]
Kind = Literal["module", "function", "autograd_function"]
KINDS: Final = ("module", "function", "autograd_function")
DEVICES: Final = ("cpu", "cuda", "sim")
MOST_MINED: Final = 5


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """Wall-clock seconds. `inductor_s` is shared by the whole batch, the others hold per target or per check.

    After `batch_s` no further target is begun; 0: there is no such limit.
    """

    harness_s: float = 20.0
    check_s: float = 60.0
    target_s: float = 180.0
    inductor_s: float = 60.0
    import_s: float = 30.0
    batch_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Target:
    """What to run: `path` and `import_root` are relative to the source root.

    `guessed`: its kind is a guess, what it is shows when it is imported.
    """

    name: str
    kind: Kind
    path: str
    line: int
    import_root: str
    module: str
    qualname: str
    guessed: bool = False


@dataclass(frozen=True, slots=True)
class Declared:
    """A harness that the repository itself gives."""

    constructor: str | None
    inputs: tuple[str, ...]
    provenance: str


@dataclass(frozen=True, slots=True)
class Mined:
    """A real call of the target, recorded while the repository's own code ran. `found_by` is one of `FOUND_BY`."""

    constructor: str | None
    inputs: tuple[str, ...]
    provenance: str
    found_by: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One target of the batch with the checks that were asked for. `mined` are at most `MOST_MINED`, the best first."""

    job: str
    target: Target
    declared: Declared | None
    hypotheses: tuple[Mapping[str, Any], ...]
    checks: tuple[str, ...]
    mined: tuple[Mined, ...] = ()


@dataclass(frozen=True, slots=True)
class Mine:
    """Run the repository's own examples instead of a batch: whose calls are of interest, and for how long."""

    budget_s: float
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Request:
    source_root: Path
    device: Device
    seed: int
    isolated: bool
    limits: ProbeLimits
    tolerances: Mapping[str, float]
    batch: tuple[Entry, ...] = field(default_factory=tuple)
    mine: Mine | None = None
    device_memory: int = 0  # bytes of a CUDA device that a check may take; 0: no bound


def read_request(path: Path) -> Request:
    """Raise `RequestError` naming the key that is missing or wrong."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RequestError(f"{path}: {error}") from error
    return parse_request(value)


def parse_request(value: Any) -> Request:
    request = _mapping(value, "request")
    if request.get("protocol") != PROTOCOL:
        raise RequestError(f"protocol: this probe speaks {PROTOCOL}, the request says {request.get('protocol')!r}")
    device = request.get("device", "cpu")
    if device not in DEVICES:
        raise RequestError(f"device: {device!r} is none of {', '.join(DEVICES)}")
    limits = _mapping(request.get("limits", {}), "limits")
    known = {name: _seconds(limits, name) for name in ProbeLimits.__slots__ if name in limits}
    mine = request.get("mine")
    batch = _list(request, "batch") if mine is None else []
    return Request(
        source_root=Path(_text(request, "source_root")).absolute(),  # targets run in a directory of their own
        device=device,
        seed=_integer(request, "seed", 0),
        isolated=bool(request.get("isolated", False)),
        limits=ProbeLimits(**known),
        tolerances={str(k): float(v) for k, v in _mapping(request.get("tolerances", {}), "tolerances").items()},
        batch=tuple(_entry(item, f"batch[{index}]") for index, item in enumerate(batch)),
        mine=None if mine is None else _mine(_mapping(mine, "mine")),
        device_memory=_integer(request, "device_memory", 0),
    )


def _mine(value: Mapping[str, Any]) -> Mine:
    return Mine(
        budget_s=_seconds(value, "budget_s", "mine"),
        targets=tuple(str(name) for name in _list(value, "targets", "mine")),
    )


def _entry(value: Any, where: str) -> Entry:
    entry = _mapping(value, where)
    target = _mapping(entry.get("target"), f"{where}.target")
    kind = target.get("kind")
    if kind not in KINDS:
        raise RequestError(f"{where}.target.kind: {kind!r} is none of {', '.join(KINDS)}")
    declared = entry.get("declared")
    return Entry(
        job=_text(entry, "job", where),
        target=Target(
            name=_text(target, "name", where),
            kind=kind,
            path=_text(target, "path", where),
            line=_integer(target, "line", 1),
            import_root=str(target.get("import_root") or ""),
            module=_text(target, "module", where),
            qualname=_text(target, "qualname", where),
            guessed=target.get("guessed") is True,
        ),
        declared=None if declared is None else _declared(_mapping(declared, f"{where}.declared"), where),
        hypotheses=tuple(_mapping(item, f"{where}.hypotheses") for item in entry.get("hypotheses") or ()),
        checks=tuple(str(check) for check in _list(entry, "checks", where)),
        mined=tuple(
            _mined(_mapping(item, f"{where}.mined"), where) for item in (entry.get("mined") or ())[:MOST_MINED]
        ),
    )


def _mined(value: Mapping[str, Any], where: str) -> Mined:
    constructor, found_by = value.get("constructor"), value.get("found_by")
    if found_by not in FOUND_BY:
        raise RequestError(f"{where}.mined.found_by: {found_by!r} is none of {', '.join(FOUND_BY)}")
    return Mined(
        constructor=None if constructor is None else str(constructor),
        inputs=tuple(str(item) for item in _list(value, "inputs", f"{where}.mined")),
        provenance=str(value.get("provenance") or "recorded"),
        found_by=found_by,
    )


def _declared(value: Mapping[str, Any], where: str) -> Declared:
    constructor = value.get("constructor")
    return Declared(
        constructor=None if constructor is None else str(constructor),
        inputs=tuple(str(item) for item in _list(value, "inputs", f"{where}.declared")),
        provenance=str(value.get("provenance") or "declared by the repository"),
    )


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(f"{where}: must be an object, not {type(value).__name__}")
    return value


def _list(value: Mapping[str, Any], key: str, where: str = "request") -> list[Any]:
    items = value.get(key)
    if not isinstance(items, list):
        raise RequestError(f"{where}.{key}: must be a list, not {type(items).__name__}")
    return items


def _text(value: Mapping[str, Any], key: str, where: str = "request") -> str:
    text = value.get(key)
    if not isinstance(text, str) or not text:
        raise RequestError(f"{where}.{key}: must be a text that isn't empty")
    return text


def _integer(value: Mapping[str, Any], key: str, default: int) -> int:
    number = value.get(key, default)
    if not isinstance(number, int) or isinstance(number, bool):
        raise RequestError(f"{key}: must be an integer, not {number!r}")
    return number


def _seconds(value: Mapping[str, Any], key: str, where: str = "limits") -> float:
    number = value.get(key)
    if not isinstance(number, int | float) or isinstance(number, bool) or number < 0:
        raise RequestError(f"{where}.{key}: must be seconds, not {number!r}")
    return float(number)
