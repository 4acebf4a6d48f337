"""The live engine of a process: one thread that owns the loop, many threads that read and send commands.

    pages, HTTP routes --command--> [bounded queue] --> "engine" thread --swap one reference--> latest(), history()
          ^                                                 | drained at step boundaries only
          +---------------- CommandResult ------------------+

Readers take no lock. Everything that changes something names its session: the controller's, or `LOCAL` for code of
this process; viewers get `ControlRefused`. `get_live` gives every caller the one engine of the process.
"""

from __future__ import annotations

import atexit
import sys
import threading
from typing import Any

from core.commands import CommandQueue
from core.config import EngineConfig
from core.control import Lease, LiveLimits
from core.errors import ControlRefused
from core.live_board import Board
from core.live_ceilings import Probe
from core.live_changes import check_load
from core.live_commands import LiveCommands
from core.live_host import EngineHost
from core.live_life import EngineFactory
from core.live_loop import EngineLoop
from core.load_spec import LoadSpec

THREAD_NAME = "engine"
SWITCH_INTERVAL_S = 2e-4
"""How long a busy thread may keep the GIL once the engine wants it (Python's default is 5 ms)."""

STOP_S = 4.0

_launching = threading.Lock()
_getting = threading.Lock()


class LiveEngine(LiveCommands):
    """The engine of this process as pages and routes see it: to be read, asked, launched and closed.

    Args:
        load: the load to start with; None starts idle.
        engine_factory: builds the engine in the engine's thread, `factory(config, progress) -> Engine`.
        probe: measures the machine's ceilings once an engine is up; probe_again: a shorter one for later.
        lease: who may give commands; a new one by default.
        paused: begin paused, e.g. to look at step 1.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        load: LoadSpec | None = None,
        engine_factory: EngineFactory,
        probe: Probe | None = None,
        probe_again: Probe | None = None,
        limits: LiveLimits | None = None,
        lease: Lease | None = None,
        paused: bool = False,
    ) -> None:
        limits = limits or LiveLimits()
        if load is not None:
            check_load(load, limits)
        self._stop = threading.Event()
        commands = CommandQueue(limits.max_commands)
        board = Board(config, limits.max_streams)
        host = EngineHost(
            config, factory=engine_factory, board=board, stop=self._stop, load=load,
            probe=probe, probe_again=probe_again, paused=paused,
        )  # fmt: skip
        super().__init__(board, EngineLoop(host, commands, self._stop), lease or Lease(), commands, limits)
        self._thread = threading.Thread(target=self._loop.run, name=THREAD_NAME, daemon=True)
        # Found by `running_engine` even if this module was imported twice and the globals are not the same.
        self._thread.batchscope_live = self  # type: ignore[attr-defined]
        self._old_interval_s = sys.getswitchinterval()

    # -- life ----------------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the thread and return at once; the model loads in the background.

        Raises:
            ControlRefused: if an engine already runs in this process, or this one has run before.
        """
        with _launching:
            if running_engine() is not None:
                raise ControlRefused("an engine already runs in this process; close it first")
            if self._thread.ident is not None:
                raise ControlRefused("this engine has been stopped; make a new one")
            self._old_interval_s = sys.getswitchinterval()
            sys.setswitchinterval(SWITCH_INTERVAL_S)
            self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """End thread and executor within a few seconds; calling it twice is harmless."""
        self._stop.set()
        self._commands.wake.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(STOP_S / 2)
            if self._thread.is_alive():
                self._loop.interrupt()  # a long step: its worker goes, and the thread with it
                self._thread.join(STOP_S / 2)
            sys.setswitchinterval(self._old_interval_s)
        atexit.unregister(self.close)

    @property
    def is_alive(self) -> bool:
        """True while the engine's thread runs."""
        return self._thread.is_alive()


def running_engine() -> LiveEngine | None:
    """The live engine of this process, None if there is none; found by its thread, whoever imported what."""
    for thread in threading.enumerate():
        live: LiveEngine | None = getattr(thread, "batchscope_live", None)
        if live is not None:
            return live
    return None


def get_live(config: EngineConfig | None = None, **options: Any) -> LiveEngine:
    """The one live engine of this process; started with the first call, whose arguments count.

    Args:
        config: the environment's settings by default, see `core.live_defaults`.
        options: as `LiveEngine`.
    """
    with _getting:
        live = running_engine()
        if live is None:
            from core.live_defaults import live_from_environment

            live = live_from_environment(config, options)
            live.launch()
        return live
