"""The embedded broker: doorbells as files in a directory. kombu's transport with its races taken out.

kombu 5.7's own `filesystem` transport writes a message in place and reads whatever lies there, so a worker now and
then reads a file that is still empty, and ends with an unrecoverable error; its table of bindings has the same fault.
Here a message appears whole, by a rename; whoever removes its file has it; what can't be read is dropped, since a
doorbell that is lost is rung again. Each queue is bound to the exchange of its own name, so there is no table.
This module must not know what a message says.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from queue import Empty
from typing import Any

import structlog
from kombu.exceptions import ChannelError
from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps, loads

log = structlog.get_logger(__name__)

SCHEME = "gradproof-files"
TRANSPORT_ALIASES[SCHEME] = f"{__name__}:Transport"


class Channel(filesystem.Channel):
    """One process's view of the directory."""

    def get_table(self, exchange: str) -> list[Any]:
        """The bindings of an exchange: the queue of the same name."""
        return [filesystem.exchange_queue_t(exchange, "", exchange)]

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:  # noqa: ARG002
        assert exchange == routing_key == queue, "each queue is bound to the exchange of its own name"

    # kombu itself calls the second parameter by two names.
    def _put(self, queue: str, message: object, **_: object) -> None:  # type: ignore[override]
        folder = Path(self.data_folder_out)
        name = f"{time.time_ns():020d}_{uuid.uuid4()}.{queue}.msg"
        draft = folder / f".{name}.draft"
        try:
            draft.write_text(dumps(message), encoding="utf-8")  # type: ignore[no-untyped-call]
            draft.rename(folder / name)
        except OSError as error:
            raise ChannelError(f"a message can't be written into {folder}: {error}") from error

    def _get(self, queue: str, timeout: float | None = None) -> Any:  # noqa: ARG002
        folder = Path(self.data_folder_in)
        ending = f".{queue}.msg"
        # Names of queues hold dots (gpu.h200): a message's own name has none before them.
        for file in sorted(file for file in folder.iterdir() if f".{file.name.partition('.')[2]}" == ending):
            try:
                payload = file.read_bytes()
                file.unlink()
            except OSError:
                continue  # another worker has it
            try:
                return loads(payload.decode())  # type: ignore[no-untyped-call]
            except ValueError:
                log.warning("damaged_message_dropped", name=file.name)
        raise Empty


class Transport(filesystem.Transport):
    """kombu's transport over this channel."""

    Channel = Channel
