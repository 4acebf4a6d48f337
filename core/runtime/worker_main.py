"""The worker process: loads a model, then runs one step for each message until its parent is gone.

    parent                                   worker (this file, started with -m)
      ("load", config, builder) ------------->  builder(config, progress)
      <------------- ("progress", text) ...
      <------------- ("ready", ExecutorInfo)    or ("failed", class name, text)
      ("step", SchedulerOutput) ------------->  execute_model
      <------------- ("done", ModelRunnerOutput, busy seconds, ExecutorInfo if it changed, else None)
                     or ("error", class name, text, traceback)
      ("call", name, arguments) ------------->  any other method
      <------------- ("result", value, ExecutorInfo)
      end of file ---------------------------->  exit

The worker never outlives its parent: the pipe closes when the parent ends, however it ends, and a thread that
sleeps in `poll` sees it even while a forward pass or a load is under way.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from core.clock import WallClock
from core.config import EngineConfig
from core.executor import Executor
from core.runtime.pipe import Channel

Builder = Callable[[EngineConfig, Callable[[str], None]], Executor]

_PARENT_CHECK_MS = 1000


def resolve_builder(path: str) -> Builder:
    """Import "package.module:function".

    Raises:
        ValueError: if the text has another form.
        ImportError, AttributeError: if there is no such thing.
    """
    module, colon, name = path.partition(":")
    if not colon:
        raise ValueError(f"{path!r} does not name a builder; write package.module:function")
    builder: Builder = getattr(importlib.import_module(module), name)
    return builder


def _take_over_pipes() -> Channel:
    """Keep the pipes for messages and turn what libraries print into lines on standard error."""
    if sys.platform == "win32":
        import msvcrt

        for fd in (0, 1):
            msvcrt.setmode(fd, os.O_BINARY)
    read_fd, write_fd = os.dup(0), os.dup(1)  # not inherited by processes that a library starts, unlike 0 and 1
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return Channel(read_fd, write_fd)


def _exit_with_parent(parent_pid: int, read_fd: int) -> None:
    """End this process as soon as the parent's end of the pipe closes or the parent's id changes."""
    poll = select.poll()
    poll.register(read_fd, 0)  # asks for nothing but reports a hang-up
    while os.getppid() == parent_pid:
        if any(events & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, events in poll.poll(_PARENT_CHECK_MS)):
            break
    os._exit(0)


def _guard_process(parent_pid: int, read_fd: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is the parent's business
    faulthandler.enable()
    if sys.platform != "win32":
        threading.Thread(target=_exit_with_parent, args=(parent_pid, read_fd), name="parent-watch", daemon=True).start()
    # If memory runs out the kernel should take the process that can be started again. Not every kernel lets us ask.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def _load(channel: Channel) -> Executor | None:
    _, config, builder_path, search_path = channel.receive()
    sys.path[:] = search_path
    try:
        executor = resolve_builder(builder_path)(config, lambda text: channel.send(("progress", text)))
    except Exception as error:
        traceback.print_exc()
        channel.send(("failed", type(error).__name__, str(error) or repr(error)))
        return None
    gc.collect()
    gc.freeze()  # what was loaded stays: no later collection walks over it
    channel.send(("ready", executor.info))
    return executor


def _serve(channel: Channel, executor: Executor) -> None:
    clock = WallClock()
    told = executor.info
    while True:
        message = channel.receive()
        try:
            if message[0] == "step":
                start_s = clock.now()
                output = executor.execute_model(message[1])
                now = executor.info  # another object once other kernels have taken over
                channel.send(("done", output, clock.now() - start_s, None if now is told else now))
                told = now
            else:
                _, name, arguments = message
                value: Any = getattr(executor, name)(*arguments)
                told = executor.info
                channel.send(("result", value, told))
        except Exception as error:
            channel.send(("error", type(error).__name__, str(error) or repr(error), traceback.format_exc()))


def main(parent_pid: int) -> int:
    """Serve one parent; returns the exit status."""
    channel = _take_over_pipes()
    _guard_process(parent_pid, channel.read_fd)
    try:
        executor = _load(channel)
        if executor is None:
            return 1
        _serve(channel, executor)
    except (EOFError, BrokenPipeError):
        return 0  # the parent has gone or has closed the pipe
    return 0


if __name__ == "__main__":
    # os._exit: destructors of the libraries may wait for threads that are still in a kernel.
    status = main(int(sys.argv[1]))
    sys.stderr.flush()
    os._exit(status)
