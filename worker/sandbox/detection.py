"""What this machine can confine code with: found out by trying, not by guessing from versions.

Each mode that may work is tried with the very arguments of a real run; what the trial says is the reason that a
person reads.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.settings import Settings
from worker.sandbox import bubblewrap, cgroups, seccomp, slots
from worker.sandbox.arguments import Tools
from worker.sandbox.bubblewrap import Bubblewrap
from worker.sandbox.cgroups import Hierarchy
from worker.sandbox.confined import BubblewrapLauncher
from worker.sandbox.errors import SandboxUnavailableError
from worker.sandbox.launcher import Launcher
from worker.sandbox.model import Command, Limits, Mode, Status
from worker.sandbox.unconfined import UnconfinedLauncher

_TRIAL: Final = Limits(
    wall_s=20.0, memory=2**28, processes=8, tmp=2**20, job=2**20, shared_memory=2**20, output=2**14, result=2**10
)


@dataclass(frozen=True, slots=True)
class Capability:
    """`mode` is how code will be confined, None if it can't be; `reasons` say why a mode is not to be had.

    `warnings` name what is weaker than it could be although a mode was found.
    """

    mode: Mode | None
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    bwrap: Path | None
    bwrap_version: str | None
    bwrap_origin: str | None
    seccomp: bool
    cgroup_version: int | None
    cgroup_controllers: tuple[str, ...]
    user_namespaces: int | None
    uid: int
    setpriv: str | None


@dataclass(frozen=True, slots=True)
class _Parts:
    tools: Tools
    bwrap: Bubblewrap | None
    program: bytes | None
    hierarchy: Hierarchy | None
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]


def detect(settings: Settings) -> Capability:
    """What this machine can do. Starts a trial run of some 10 ms for each mode that it considers."""
    return _choose(settings, None)[0]


def open_sandbox(settings: Settings, mode: Mode | None = None) -> Launcher:
    """The launcher for `settings`; `mode` asks for one mode in particular instead of the best one.

    Raises SandboxUnavailableError, with all reasons, if code can't be confined here.
    """
    if not settings.sandbox or mode is Mode.OFF:
        hierarchy, _ = cgroups.find_hierarchy()
        return UnconfinedLauncher(tools=_find_tools(), hierarchy=hierarchy)
    capability, launcher = _choose(settings, mode)
    if launcher is None:
        raise SandboxUnavailableError(
            f"no sandbox can be set up here: {'; '.join(capability.reasons)}. `gradproof doctor` shows the parts; "
            "--no-sandbox (GRADPROOF_SANDBOX=false) runs without one, for code that you would run yourself",
            reasons=list(capability.reasons),
        )
    return launcher


def _choose(settings: Settings, wanted: Mode | None) -> tuple[Capability, Launcher | None]:
    parts = _find_parts()
    reasons = list(parts.reasons)
    launcher: BubblewrapLauncher | None = None
    if not reasons:
        for mode in _considered() if wanted is None else (wanted,):
            try:
                launcher = _tried(settings, mode, parts)
            except SandboxUnavailableError as error:
                reasons.append(f"mode {mode}: {error.message}")
            else:
                break
    capability = Capability(
        mode=launcher.mode if launcher is not None else None,
        reasons=tuple(reasons),
        warnings=parts.warnings,
        bwrap=parts.bwrap.path if parts.bwrap else None,
        bwrap_version=parts.bwrap.version if parts.bwrap else None,
        bwrap_origin=parts.bwrap.origin if parts.bwrap else None,
        seccomp=parts.program is not None,
        cgroup_version=parts.hierarchy.version if parts.hierarchy else None,
        cgroup_controllers=parts.hierarchy.controllers if parts.hierarchy else (),
        user_namespaces=_user_namespaces(),
        uid=os.geteuid(),
        setpriv=parts.tools.setpriv,
    )
    return capability, launcher


def _considered() -> tuple[Mode, ...]:
    return (Mode.ROOT, Mode.USER) if os.geteuid() == 0 else (Mode.USER,)


def _find_tools() -> Tools:
    setpriv, unshare, mount = (
        shutil.which(name, path=bubblewrap.SYSTEM_PATH) for name in ("setpriv", "unshare", "mount")
    )
    return Tools(sh="/bin/sh", setpriv=setpriv, unshare=unshare, mount=mount)


def _find_parts() -> _Parts:
    reasons: list[str] = []
    warnings: list[str] = []
    tools = _find_tools()
    bwrap, passed_over = bubblewrap.find()
    if bwrap is None:
        reasons.append("; ".join(("bubblewrap is not installed", *passed_over, bubblewrap.HOW_TO_GET_IT)))
    else:
        warnings += passed_over
    program: bytes | None = None
    try:
        program = seccomp.filter_program()
    except seccomp.SeccompUnavailableError as error:
        reasons.append(str(error))
    if os.geteuid() == 0 and tools.setpriv is None:
        reasons.append("setpriv is not installed; on Debian: apt-get install util-linux")
    hierarchy, missing = cgroups.find_hierarchy()
    if hierarchy is None:
        warnings.append(f"no control groups ({missing}): memory is watched twice a second and bounded per process only")
    else:
        warnings += [
            f"the {name} controller is not ours to use: that limit does not hold"
            for name in ("pids", "cpu")
            if name not in hierarchy.controllers
        ]
    return _Parts(tools, bwrap, program, hierarchy, tuple(reasons), tuple(warnings))


def _tried(settings: Settings, mode: Mode, parts: _Parts) -> BubblewrapLauncher:
    """A launcher whose trial run went well. Raises SandboxUnavailableError."""
    root = os.geteuid() == 0
    if mode is Mode.ROOT and not root:
        raise SandboxUnavailableError("only root can hand out uids")
    if parts.bwrap is None or parts.program is None:
        raise SandboxUnavailableError("; ".join(parts.reasons))
    launcher = BubblewrapLauncher(
        mode,
        bwrap=parts.bwrap.path,
        tools=parts.tools,
        seccomp=parts.program,
        hierarchy=parts.hierarchy,
        slots=slots.slot_directory(settings.data_dir) if root else None,
        uid_base=settings.sandbox_uid_base,
    )
    trial = Command(interpreter=Path(sys.executable), argv=("/bin/true",), request=b"")
    outcome = launcher.run(trial, _TRIAL, on_result=lambda _: None, cancelled=lambda: False)
    if outcome.status is not Status.EXITED or outcome.exit_code != 0:
        said = outcome.stderr_tail.strip() or outcome.detail or f"{outcome.status} {outcome.exit_code}"
        raise SandboxUnavailableError(f"a trial run failed: {said}")
    return launcher


def _user_namespaces() -> int | None:
    """How many user namespaces the kernel allows; 0 means none, None that it does not say."""
    try:
        return int(Path("/proc/sys/user/max_user_namespaces").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
