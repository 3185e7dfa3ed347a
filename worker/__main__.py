"""A worker without the command line's conveniences, as tests and supervisors use it.

`python -m worker cpu,control`, or with a device: `python -m worker gpu.cuda cuda:1`.
"""

from __future__ import annotations

import sys

from pydantic import ValidationError

from services.problems import GradproofError
from services.settings import read_settings
from worker.celery_app import run_worker


def main() -> int:
    """Serve the queues named in the first argument, separated by commas; the second may name a device."""
    try:
        return run_worker(read_settings(), sys.argv[1].split(","), device=next(iter(sys.argv[2:]), None))
    except ValidationError as error:
        for problem in error.errors(include_url=False, include_input=False):
            name = "_".join(str(part) for part in problem["loc"][:1]).upper()
            sys.stderr.write(f"GRADPROOF_{name}: {problem['msg']}\n" if name else f"{problem['msg']}\n")
        return 2
    except GradproofError as error:
        sys.stderr.write(f"{error.title}: {error.message}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
