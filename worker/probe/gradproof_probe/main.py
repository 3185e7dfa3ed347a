"""The process that the worker starts: reads one request, answers with lines.

    python -m gradproof_probe [REQUEST]

or, where only the package's directory is at hand (the sandbox binds it read-only at /gradproof/gradproof_probe)::

    python -I -c BOOTSTRAP_OF("/gradproof") [REQUEST]

with `bootstrap("/gradproof")` for the text after `-c`: `-I` keeps the surroundings (PYTHONPATH, the current
directory, user site) out. REQUEST is `/job/request.json` if not given. Lines go to the descriptor whose number is in
`GRADPROOF_RESULT_FD`; standard output stays free: submitted code prints there.

Exit status: 0 every entry was answered; 2 the request or the surroundings are unusable (said on standard error);
3 torch can't be imported.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from gradproof_probe.errors import ProbeError, RequestError
from gradproof_probe.request import read_request

RESULT_FD: Final = "GRADPROOF_RESULT_FD"
DEFAULT_REQUEST: Final = "/job/request.json"


def bootstrap(directory: str) -> str:
    """Program text for `python -I -c`, with `directory` holding `gradproof_probe/`."""
    return f"import sys; sys.path.insert(0, {directory!r}); from gradproof_probe.main import main; main()"


def main(argv: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if argv is None else argv
    try:
        descriptor = _result_descriptor()
        request = read_request(Path(arguments[0] if arguments else DEFAULT_REQUEST))
    except RequestError as error:
        print(f"gradproof_probe: {error}", file=sys.stderr)  # noqa: T201 - nobody else is there to tell it to
        raise SystemExit(2) from None
    from gradproof_probe.supervisor import supervise

    try:
        supervise(request, descriptor)
    except ProbeError as error:
        print(f"gradproof_probe: {error}", file=sys.stderr)  # noqa: T201
        raise SystemExit(3) from None


def _result_descriptor() -> int:
    """Out of the environment at once, and not inheritable: no child may write to the worker's pipe."""
    text = os.environ.pop(RESULT_FD, "")
    try:
        descriptor = int(text)
        os.fstat(descriptor)
    except (ValueError, OSError) as error:
        raise RequestError(f"{RESULT_FD}={text!r} isn't an open file descriptor") from error
    os.set_inheritable(descriptor, False)  # noqa: FBT003
    return descriptor
