"""How processes of the service log: one line an event on stderr, with the plain traceback and never with values.

JSON when a machine collects it, readable columns on a terminal. Local variables are kept out of tracebacks: they hold
database URLs, tokens and submitted text. This module must not know who logs.
"""

from __future__ import annotations

import io
import logging
import sys
from typing import TextIO, cast

import structlog


class _CurrentStderr(io.TextIOBase):
    """What `sys.stderr` is at the time of writing: another than at the start, where somebody puts one in its place."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def configure_logging(*, level: int = logging.INFO) -> None:
    """Set structlog up for this process; libraries that use the standard logging are heard from warnings on."""
    machine = not sys.stderr.isatty()
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    if machine:
        processors.append(structlog.processors.JSONRenderer())
    else:
        processors.append(structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback))
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _CurrentStderr())),
        cache_logger_on_first_use=False,  # whoever sets it up later in the same process is heard by all
    )
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
