"""What results rest on beside the submitted source: the probe's own files and the packages beside it.

Asks the interpreter that will run the probe, in a process of its own which imports nothing but the standard library.
This module must not know targets or results.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Final

from services.reuse.keys import Surroundings
from services.settings import Settings
from worker.environments import layer_for
from worker.execution.command import probe_digest

# Names and versions only: what a package does is told by its version.
_LISTING: Final = (
    "import importlib.metadata as m, json, platform, sys; "
    "print(json.dumps([sys.version, platform.machine(), "
    "sorted({(d.metadata['Name'] or '', d.version or '') for d in m.distributions()})]))"
)
_ANSWER_S: Final = 60.0


def environment_digest(python: Path) -> str | None:
    """A digest of an interpreter, its machine and the packages installed for it; None if it doesn't answer."""
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", _LISTING], capture_output=True, check=True, timeout=_ANSWER_S, env={}
        )
        listed = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def surroundings_of(settings: Settings, source: Path) -> Surroundings | None:
    """Those of the interpreter that the settings name, for the snapshot at `source`; None if it doesn't answer."""
    environment = environment_digest(settings.python)
    if environment is None:
        return None
    layer = layer_for(source, settings)
    if layer is not None:
        # Also why there is none: what could not be imported for that is looked at anew once it can be built.
        parts = (environment, layer.digest, layer.reason or "")
        environment = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return Surroundings(probe_digest(), environment)
