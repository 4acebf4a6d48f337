"""One engine at a time, from its build to its end: made, begun, held, begun again, replaced; engine's thread only.

build -> [ runs | paused | failed -> go on, reset ] -> close
  ^                                                      |
  +---- change model: the old one comes back if the new one fails
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Sequence

from core.clock import PausableClock
from core.config import EngineConfig
from core.engine import Engine
from core.errors import BatchscopeError
from core.executor import RemoteExecutor
from core.live_board import Board
from core.live_ceilings import CeilingProbes, Probe
from core.live_pictures import Pictures
from core.load_driver import LoadDriver
from core.load_spec import LoadSpec
from core.outputs import RequestEvent
from core.request import SLO, SamplingParams
from core.workload import Arrival

log = logging.getLogger(__name__)

EngineFactory = Callable[[EngineConfig, Callable[[str], None]], Engine]


class StopRequested(BaseException):
    """Ends a load that is under way; not an error, so nothing on its way may take it for one."""


class EngineLife:
    """Owns the engine, its load, and the way from one engine to the next; `core.live_host.EngineHost` runs it.

    Args:
        factory: builds an engine; its second argument takes lines of progress and may raise `StopRequested`.
        probe: measures the ceilings of the machine once an engine is up; None leaves them unknown.
        probe_again: a shorter probe for later, see `core.live_ceilings`; None never measures again.
        load: what to send as soon as there is an engine.

    Attributes:
        config: the configuration of the present engine, or of the one that could not be built.
        paused: no step runs; time stands still on a clock that can be held.
        listeners: called in the engine's thread with the events of each step; they must only take notes.
        broken: why there is no engine, or why it must not step any more.
        down: why the executor runs no step until it is revived.
        late_commands: carries out the submissions that wait, while a decided step waits to be launched.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        factory: EngineFactory,
        board: Board,
        stop: threading.Event,
        load: LoadSpec | None = None,
        probe: Probe | None = None,
        probe_again: Probe | None = None,
        paused: bool = False,
    ) -> None:
        self.config = config
        self.board = board
        self.pictures = Pictures(board)
        self.driver = LoadDriver(self._submit_arrival, board.prompt_source)
        self.listeners: list[Callable[[Sequence[RequestEvent]], None]] = []
        self.paused = paused
        self.broken = ""
        self.down = ""
        self.remote: RemoteExecutor | None = None
        self.late_commands: Callable[[], None] = lambda: None
        self._factory = factory
        self._stop = stop
        self._load = load
        self._probes = CeilingProbes(probe, probe_again)
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        """The present engine.

        Raises:
            BatchscopeError: if there is none.
        """
        if self._engine is None:
            raise BatchscopeError(f"there is no engine: {self.broken or 'it is still starting'}")
        return self._engine

    @property
    def load(self) -> LoadSpec | None:
        """The load that runs, or that begins as soon as there is an engine."""
        return self.driver.spec if self._engine is not None else self._load

    @property
    def max_model_len(self) -> int:
        """Most prompt and output tokens of a request."""
        engine = self.engine
        limit = engine.info.spec.max_model_len
        return min(engine.config.max_model_len or limit, limit)

    @property
    def can_step(self) -> bool:
        """True where nothing but a pause keeps the engine from stepping."""
        return self._engine is not None and not (self.broken or self.down or self._engine.failed)

    # -- life of an engine -------------------------------------------------------------------------------

    def build(self, config: EngineConfig) -> str:
        """Make `config` the present engine and begin its load; returns "" or why that failed."""
        self.close_engine("the engine starts again")
        self.config, self.broken, self.down = config, "", ""
        try:
            engine = self._factory(config, self.on_progress)
        except BatchscopeError as error:
            self.broken = str(error)
        except Exception as error:
            log.exception("building the engine failed")
            self.broken = f"the engine could not start: {type(error).__name__}: {error}"
        if self.broken:
            self.publish(force=True)
            return self.broken
        self.config = engine.config
        self.remote = engine.executor if isinstance(engine.executor, RemoteExecutor) else None
        try:
            self._probes.begin(engine, self.on_progress)
        except BaseException:  # the process wants to end, or the probe has a defect: nobody else knows this engine yet
            engine.close()
            raise
        self._engine = engine
        engine.between_launches = self._take_late
        self.board.attach(engine)
        # What is loaded now stays: no later collection has to walk over it.
        gc.collect()
        gc.freeze()
        self.set_paused(self.paused)
        self._begin_load()
        self.publish(force=True)
        return ""

    def close_engine(self, reason: str) -> None:
        """End what is live and close the executor."""
        engine, self._engine, self.remote = self._engine, None, None
        self.driver.stop()
        if engine is not None:
            self._probes.keep(engine)
            self.board.streams.end_all(reason, engine.clock.now())
            engine.close()

    def change_model(self, config: EngineConfig) -> None:
        """Close this engine and build another; if that fails, the old one is built again.

        Raises:
            BatchscopeError: with the reason; the old configuration then runs again, or the state is failed.
        """
        old = self.config
        why = self.build(config)
        if not why:
            return
        if config != old:
            self.pictures.notice(why)
        back = config != old and not self.build(old)
        raise BatchscopeError(why + (". The previous model runs again" if back else ""))

    def on_progress(self, text: str) -> None:
        """Publish how far a load is (StopRequested if the process wants to end)."""
        if self._stop.is_set():
            raise StopRequested
        self.pictures.starting(text, self.config)

    def _rebuild(self) -> None:
        why = self.build(self.config)
        if why:
            raise BatchscopeError(why)

    def _revive(self) -> None:
        self.down = ""
        if self.remote is not None:
            self.remote.revive()

    def _take_late(self) -> None:
        """A decided step waits to be launched: what is due by now arrives, and what was submitted by now is queued."""
        self.driver.feed(self.engine.clock.now())
        self.late_commands()

    # -- held, failed, begun again -----------------------------------------------------------------------

    def set_paused(self, paused: bool) -> None:
        """Hold or go on; on a wall clock that can be held the engine's time stands still meanwhile."""
        self.paused = paused
        clock = self._engine.clock if self._engine is not None else None
        if isinstance(clock, PausableClock):
            clock.pause() if paused else clock.resume()

    def go_on(self) -> None:
        """Run; also the way out of a failure that lost no request.

        Raises:
            BatchscopeError: if there is still no engine that can run.
        """
        if self._engine is None:
            self._rebuild()
        elif self.broken:
            raise BatchscopeError(self.broken)
        self._revive()
        if self.engine.failed:
            self.engine.recover()
        self.set_paused(False)

    def reset(self) -> None:
        """Back to the beginning with the same settings; the load begins afresh.

        Raises:
            BatchscopeError: if no engine can be built.
        """
        if self._engine is None or self.broken:
            self._rebuild()
            return
        self._revive()
        self.driver.stop()
        self.engine.reset()
        self.board.streams.end_all("the engine was reset", self.engine.clock.now())
        self._begin_load()

    # -- load --------------------------------------------------------------------------------------------

    def set_load(self, spec: LoadSpec | None) -> None:
        """Begin a load, or send nothing more."""
        self._load = spec
        self.driver.stop()
        self._begin_load()

    def _begin_load(self) -> None:
        if self._load is not None:
            self.driver.start(self._load, self.engine.clock.now())

    def _submit_arrival(self, arrival: Arrival) -> str:
        spec = self.driver.spec or LoadSpec()
        sampling = SamplingParams(
            max_tokens=arrival.max_tokens,
            temperature=spec.temperature,
            top_p=spec.top_p,
            top_k=spec.top_k,
            ignore_eos=spec.ignore_eos,
        )
        return self.engine.add_request(
            arrival.prompt_token_ids,
            sampling,
            tenant=arrival.tenant,
            priority=arrival.priority,
            slo=SLO(arrival.slo_ttft_s, arrival.slo_itl_s),
            source="load",
            arrival_time_s=arrival.time_s,
        )

    # -- pictures ----------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """ "failed", "paused", "running" or "idle"."""
        if not self.can_step:
            return "failed"
        if self.paused:
            return "paused"
        return "running" if self.engine.has_work() else "idle"

    def publish(self, state: str = "", *, progress: str = "", force: bool = False) -> None:
        """Publish a picture if it is time, or at once."""
        self.pictures.trouble = self.broken or self.down
        self.pictures.load_label = self.driver.label
        self.pictures.publish(self._engine, state or self.state, progress=progress, force=force)
