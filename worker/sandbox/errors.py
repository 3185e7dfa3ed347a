"""What the sandbox can't do for reasons outside the submitted code.

A fault of the submitted code is never one of these: it is an `Outcome`.
"""

from __future__ import annotations

from typing import ClassVar

from services.problems import SurroundingsError


class SandboxUnavailableError(SurroundingsError):
    """No sandbox can be set up here, or this command can't be shown inside one; the message says what is missing."""

    code: ClassVar[str] = "sandbox-unavailable"
    title: ClassVar[str] = "No sandbox can be set up here"


class InterpreterError(SandboxUnavailableError):
    """What was given as a Python is none that starts: on the command line, a mistake in --python."""

    code: ClassVar[str] = "interpreter"
    title: ClassVar[str] = "The Python can't be used"
    exit_code: ClassVar[int] = 2
