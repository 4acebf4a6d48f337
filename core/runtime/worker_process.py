"""One worker process as the parent sees it: start it, talk to it, say how it died, end it.

The child is a fresh interpreter (`python -m core.runtime.worker_main`), not a fork and not a multiprocessing
child: torch's threads survive no fork, and a spawned child would import the parent's main script again, which
under `streamlit run` is the whole dashboard.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from core.config import EngineConfig
from core.runtime.pipe import Channel

_ROOT = Path(__file__).resolve().parents[2]
_STDERR_LIMIT_BYTES = 1 << 20
_GRACE_S = 2.0


def describe_exit(returncode: int | None) -> str:
    """Say in words how a process ended; None is one that closed its pipe and is still there."""
    if returncode is None:
        return "closed its pipe without ending"
    if returncode >= 0:
        return f"ended with status {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    hint = "; if nobody killed it, the system ran out of memory" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"


class WorkerProcess:
    """A started worker that has been told what to load.

    Args:
        builder: "package.module:function" that makes the executor inside the worker.

    Raises:
        OSError: if no process can be started.
    """

    def __init__(self, config: EngineConfig, builder: str) -> None:
        environment = dict(os.environ)
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([str(_ROOT), inherited] if inherited else [str(_ROOT)])
        # Append mode, so that the file can be cut while the child keeps writing.
        self._stderr = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - lives as long as the process
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "core.runtime.worker_main", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                bufsize=0,
                env=environment,
                # A group of its own: Ctrl-C in the terminal reaches the parent, which then ends the worker in order.
                process_group=0 if os.name == "posix" else None,
            )
        except BaseException:
            self._stderr.close()
            raise
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self.channel = Channel(self._popen.stdout.fileno(), self._popen.stdin.fileno())
        # A worker that is gone already is found by the first read, which then has its exit status to tell.
        with contextlib.suppress(OSError):
            self.channel.send(("load", config, builder, list(sys.path)))

    @property
    def pid(self) -> int:
        return self._popen.pid

    def exchange(self, message: tuple[Any, ...]) -> tuple[Any, ...]:
        """Send one order and wait for its answer.

        Raises:
            OSError, EOFError: if the worker is gone.
        """
        self.channel.send(message)
        answer: tuple[Any, ...] = self.channel.receive()
        return answer

    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def trim_stderr(self) -> None:
        """Keep what the worker printed below a bound."""
        if os.fstat(self._stderr.fileno()).st_size > _STDERR_LIMIT_BYTES:
            os.ftruncate(self._stderr.fileno(), 0)

    def last_words(self, max_chars: int = 600) -> str:
        """The end of what the worker printed on standard error."""
        size = os.fstat(self._stderr.fileno()).st_size
        start = max(size - 4 * max_chars, 0)
        self._stderr.seek(start)
        return self._stderr.read().decode("utf-8", "replace").strip()[-max_chars:]

    def cause_of_death(self) -> str:
        """How the process ended, with its last words; waits a moment for the exit status."""
        try:
            code: int | None = self._popen.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            code = None
        words = self.last_words()
        return describe_exit(code) + (f"; its standard error ends with: {words}" if words else "")

    def kill(self) -> None:
        """End it now; a reader of the channel gets an end of file."""
        self._popen.kill()

    def close(self) -> None:
        """End it in order, or by force after a grace time; calling it twice is harmless."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.close()  # the worker exits by itself when its pipe closes
        try:
            self._popen.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._popen.stdout.close()
        self._stderr.close()
