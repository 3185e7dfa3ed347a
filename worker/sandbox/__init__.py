"""Confined runs of submitted code. `detect` says what is possible here, `open_sandbox` gives the launcher."""

from worker.sandbox.detection import Capability, detect, open_sandbox
from worker.sandbox.errors import SandboxUnavailableError
from worker.sandbox.launcher import Launcher

__all__ = ["Capability", "Launcher", "SandboxUnavailableError", "detect", "open_sandbox"]
