"""Whole messages over a pair of file descriptors: a length, then a pickle.

    | 4 bytes, little endian: n | n bytes, pickle protocol 5 |

A message goes out with one write and, as long as it is shorter than the pipe's buffer, comes in with one read.
That matters beside other Python threads: each system call that gives up the GIL must win it back, and a busy
neighbour keeps it for a whole switch interval. Both ends belong to this program; nothing foreign is unpickled.
"""

from __future__ import annotations

import os
import pickle
import select
from typing import Any

_HEADER_BYTES = 4
_READ_BYTES = 1 << 16


class Channel:
    """Two ends of two pipes. One thread at a time may send, one may receive."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd = read_fd
        self._write_fd = write_fd
        self._rest = b""

    def send(self, message: Any) -> None:
        """Send one message.

        Raises:
            OSError: if the other end is closed (BrokenPipeError on POSIX).
        """
        body = pickle.dumps(message, protocol=5)
        data = memoryview(len(body).to_bytes(_HEADER_BYTES, "little") + body)
        while data:
            data = data[os.write(self._write_fd, data) :]

    def poll(self, timeout_s: float) -> bool:
        """True if `receive` would not wait for the beginning of a message (or would find the pipe closed)."""
        if self._rest:
            return True
        return bool(select.select([self.read_fd], [], [], timeout_s)[0])

    def receive(self) -> Any:
        """Wait for one message, without holding the GIL.

        Raises:
            EOFError: if the other end is closed.
        """
        data = self._rest or self._read(_READ_BYTES)
        while len(data) < _HEADER_BYTES:
            data += self._read(_READ_BYTES)
        end = _HEADER_BYTES + int.from_bytes(data[:_HEADER_BYTES], "little")
        if len(data) < end:
            parts = [data]
            missing = end - len(data)
            while missing > 0:
                parts.append(self._read(max(missing, _READ_BYTES)))
                missing -= len(parts[-1])
            data = b"".join(parts)
        self._rest = data[end:]
        return pickle.loads(memoryview(data)[_HEADER_BYTES:end])

    def _read(self, most: int) -> bytes:
        data = os.read(self.read_fd, most)
        if not data:
            raise EOFError("the other end of the pipe is closed")
        return data
