"""The socket that the server listens on: its answers are sent at once."""

from __future__ import annotations

import asyncio
import socket

from api.cli.processes import _listen


def test_connections_do_not_hold_small_answers_back() -> None:
    assert asyncio.run(_delay_is_off(_listen("127.0.0.1", 0)))


async def _delay_is_off(listener: socket.socket) -> bool:
    """What asyncio, and so uvicorn, makes of a connection that comes in at this listener."""
    seen: asyncio.Queue[int] = asyncio.Queue()

    async def taken(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = writer.get_extra_info("socket")
        await seen.put(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async with await asyncio.start_server(taken, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname())
        off = await seen.get()
        writer.close()
        return off != 0
