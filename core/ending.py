"""The end of a process on SIGTERM: what must end first is ended whatever the server does with the signal.

    SIGTERM -> close() in a thread, waited for -> the handler that was there before (the server's), or the default
                                      |
                                      +-- after `limit_s` in all the process ends in any case, with status 143

A server may leave before its own clean-up has run (a signal during its start), or wait for clients that never hang
up. Neither must leave an engine or a worker behind.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

log = logging.getLogger(__name__)

LIMIT_S = 4.5
CLOSING_SHARE = 0.9
"""Of the limit: for the clean-up; what is left is for the handler that was there before."""

STATUS = 128 + signal.SIGTERM

_others: list[Callable[[], None]] = []


def also_ends(close: Callable[[], None]) -> None:
    """Have `close` called by `close_others`: by whoever makes something that a signal would otherwise leave behind."""
    _others.append(close)


def close_others() -> None:
    """Close what was named to `also_ends`, each once."""
    while _others:
        _others.pop()()


def end_first(close: Callable[[], None], limit_s: float = LIMIT_S) -> Callable[[], None]:
    """Have `close` called at SIGTERM before anybody else hears of it; main thread only, elsewhere nothing happens.

    Args:
        close: ends things within a few seconds; it runs in a thread of its own, because the signal may have interrupted
            the main thread while it held a lock.
        limit_s: time from the signal to the end of the process, at most.

    Returns:
        What puts the handler back that was there before.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    before = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL  # None: set by something that is not Python

    def on_signal(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, before)  # a second signal goes where it would have gone
        deadline = threading.Timer(limit_s, os._exit, (STATUS,))
        deadline.daemon = True
        deadline.start()
        closing = threading.Thread(target=_logged, args=(close,), name="ending", daemon=True)
        closing.start()
        closing.join(CLOSING_SHARE * limit_s)
        if callable(before):
            before(number, frame)
        else:
            os.kill(os.getpid(), number)

    def restore() -> None:
        if signal.getsignal(signal.SIGTERM) is on_signal:
            signal.signal(signal.SIGTERM, before)

    signal.signal(signal.SIGTERM, on_signal)
    return restore


def _logged(close: Callable[[], None]) -> None:
    try:
        close()
    except Exception:
        log.exception("not everything could be ended")
