"""What a call waits for: the next pieces of an answer, or the end of its client; nothing here blocks the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request

from core.streams import RequestStream, StreamPiece


async def disconnected(request: Request) -> None:
    """Return when the client has gone."""
    try:
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                return
    except ClientDisconnect:
        return


async def pieces_of(stream: RequestStream) -> AsyncIterator[tuple[list[StreamPiece], bool]]:
    """Batches of new pieces and whether they are the last; the engine's thread only sets an event of the loop."""
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    stop = stream.listen(lambda: loop.call_soon_threadsafe(changed.set))
    cursor = 0
    try:
        while True:
            changed.clear()
            end = stream.end  # read before the pieces: none follows it
            pieces, cursor = stream.since(cursor)
            if pieces or end is not None:
                yield pieces, end is not None
            if end is not None:
                return
            await changed.wait()
    finally:
        stop()
