"""Viewers of the dashboard without a browser: WebSocket sessions that speak Streamlit's protocol and paint nothing.

    python -m benchmarks.viewers URL --page live --count 2 --seconds 20
    python -m benchmarks.viewers URL --while FILE      they look while FILE exists, come back with it, end with FILE.end

A session asks for a page as a browser does, then asks for every fragment again at the interval that the server named
for it (`auto_rerun`), and acknowledges nothing, as a browser does. It counts runs and bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import websockets
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

LOOK_S = 0.05


@dataclass
class Viewer:
    """One session.

    Attributes:
        intervals_s: seconds between runs of each fragment that runs by itself.
        runs: script runs that ended.
        errors: exceptions that a page showed.
        interval_s: seconds between such runs whatever the page asks for; 0 does as it asks.
        run_bytes: bytes received in each finished run, the page's first run included.
        goes_on: asked between two messages; False ends the session.
    """

    url: str
    page: str
    intervals_s: dict[str, float] = field(default_factory=dict)
    due_s: dict[str, float] = field(default_factory=dict)
    page_hash: str = ""
    runs: int = 0
    received: int = 0
    interval_s: float = 0.0
    run_bytes: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    goes_on: Callable[[], bool] = lambda: True

    async def watch(self, seconds: float) -> None:
        """Look at the page for a while."""
        address = self.url.replace("http", "ws", 1) + "/_stcore/stream"
        options: dict[str, Any] = {
            "max_size": None,
            "ping_timeout": None,
            "open_timeout": None,
        }  # a server short of processor time is slow, not gone
        async with websockets.connect(address, subprotocols=["streamlit"], origin=self.url, **options) as socket:
            await self._ask(socket)
            end_s = time.monotonic() + seconds
            since_run = 0
            while (now_s := time.monotonic()) < end_s and self.goes_on():
                next_s = min([end_s, *self.due_s.values()])
                try:
                    data = await asyncio.wait_for(socket.recv(), max(next_s - now_s, 0.001))
                except TimeoutError:
                    await self._rerun_due(socket)
                    continue
                since_run += len(data)
                self.received += len(data)
                if self._take(data):
                    self.run_bytes.append(since_run)
                    since_run = 0

    def _take(self, data: bytes) -> bool:
        """Read a message; True at the end of a run."""
        message = ForwardMsg()
        message.ParseFromString(data)
        kind = message.WhichOneof("type")
        if kind == "new_session":
            self.page_hash = message.new_session.page_script_hash
        elif kind == "auto_rerun":
            name, interval_s = message.auto_rerun.fragment_id, self.interval_s or message.auto_rerun.interval
            self.intervals_s[name] = interval_s
            self.due_s[name] = time.monotonic() + interval_s
        elif kind == "delta" and message.delta.new_element.WhichOneof("type") == "exception":
            self.errors.append(message.delta.new_element.exception.message)
        elif kind == "script_finished":
            self.runs += 1
            return True
        return False

    async def _rerun_due(self, socket: websockets.ClientConnection) -> None:
        now_s = time.monotonic()
        for name in [name for name, due_s in self.due_s.items() if due_s <= now_s]:
            self.due_s[name] = now_s + self.intervals_s[name]
            await self._ask(socket, name)

    async def _ask(self, socket: websockets.ClientConnection, fragment: str = "") -> None:
        message = BackMsg()
        message.rerun_script.query_string = ""
        if fragment:
            message.rerun_script.fragment_id = fragment
            message.rerun_script.is_auto_rerun = True
            message.rerun_script.page_script_hash = self.page_hash
        else:
            message.rerun_script.page_name = self.page
        await socket.send(message.SerializeToString())


async def watch(url: str, page: str, count: int, seconds: float) -> list[Viewer]:
    """Let `count` viewers look at a page at the same time."""
    viewers = [Viewer(url, page) for _ in range(count)]
    await asyncio.gather(*(viewer.watch(seconds) for viewer in viewers))
    return viewers


async def watch_while(url: str, page: str, count: int, switch: Path) -> list[Viewer]:
    """Let `count` new viewers look whenever the file exists, until the file NAME.end does."""
    end, viewers = switch.with_name(switch.name + ".end"), list[Viewer]()
    while not end.exists():
        if switch.exists():
            group = [Viewer(url, page, goes_on=switch.exists) for _ in range(count)]
            viewers += group
            await asyncio.gather(*(viewer.watch(3600.0) for viewer in group))
        await asyncio.sleep(LOOK_S)
    return viewers


def main() -> None:
    """Watch, then print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--page", default="live")
    parser.add_argument("--count", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--while", dest="switch", type=Path, help="look while this file exists instead")
    args = parser.parse_args()
    if args.switch:
        viewers = asyncio.run(watch_while(args.url, args.page, args.count, args.switch))
    else:
        viewers = asyncio.run(watch(args.url, args.page, args.count, args.seconds))
    ticks = [size for viewer in viewers for size in viewer.run_bytes[1:]]
    line = {
        "viewers": len(viewers),
        "runs": sum(viewer.runs for viewer in viewers),
        "bytes": sum(viewer.received for viewer in viewers),
        "mean_tick_bytes": round(sum(ticks) / len(ticks)) if ticks else 0,
        "largest_tick_bytes": max(ticks, default=0),
        "errors": sorted({error for viewer in viewers for error in viewer.errors}),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
