"""A piece of work in a thread of its own that somebody may call off: `start` (the owner's), `cancel`, `join`."""

from __future__ import annotations

import threading


class BackgroundWork:
    """The thread and the wish to end it; a subclass starts it and looks at `_cancelled` in `_run`."""

    def __init__(self, name: str) -> None:
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def cancel(self) -> None:
        """End after the piece under way; what is there so far stays, what was changed comes back."""
        self._cancelled.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; False if it did not come in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        raise NotImplementedError
