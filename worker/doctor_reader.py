"""Whether the sandbox can show the reader what it needs, as `gradproof doctor` tells it: by reading nothing.

The reader runs under the interpreter of the worker itself, which may lie where the uid of a sandbox can't read it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from services.analyses.model import AnalysisOptions
from services.settings import Settings
from worker.reading import ReadingFailed, read_apart
from worker.sandbox import SandboxUnavailableError, open_sandbox

_WITHIN_S: Final = 60.0


def examine_reader(settings: Settings) -> tuple[bool, str]:
    """Whether an empty directory can be read in the sandbox, and what was found."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        try:
            outcome = read_apart(
                Path(place),
                AnalysisOptions(static_only=True),
                launcher=open_sandbox(settings),
                cancelled=lambda: False,
                wall_s=_WITHIN_S,
            )
        except SandboxUnavailableError as error:
            return False, error.message
    if isinstance(outcome, ReadingFailed):
        return False, outcome.reason
    return True, "submitted source is read in the sandbox"
