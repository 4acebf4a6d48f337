"""Live engines for tests: the real thread and scheduler on a scripted executor, closed at the end whatever happens."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine_cases import scripted_engine

from core.clock import Clock, PausableClock, WallClock
from core.config import EngineConfig
from core.control import LOCAL
from core.engine import Engine
from core.live import LiveEngine
from core.outputs import ModelRunnerOutput, SchedulerOutput
from core.request import SamplingParams
from core.snapshot import EngineSnapshot

PATIENCE_S = 90.0
"""How long a test waits for what must come: a busy machine is slow, not wrong."""
ME: dict[str, Any] = {"session_id": LOCAL, "wait_s": PATIENCE_S}
"""Whoever gives commands in a test waits for the step boundary however long a starved engine takes to reach it."""
FOREVER = SamplingParams(max_tokens=400, ignore_eos=True)
SHORT = SamplingParams(max_tokens=4, ignore_eos=True)
SLOW_STEP_S = 0.02
"""A `Gate` that delays by this keeps `FOREVER` running for at least eight seconds: long enough to be looked at."""


class Gate:
    """Holds the executor of a live engine in a step until it is opened; `delay_s` slows every step."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.inside = threading.Event()
        self.delay_s = 0.0
        self.fail_next: Exception | None = None

    def wrap(self, engine: Engine) -> Engine:
        run = engine.executor.execute_model

        def gated(output: SchedulerOutput) -> ModelRunnerOutput:
            self.inside.set()
            assert self.open.wait(PATIENCE_S)
            time.sleep(self.delay_s)
            if self.fail_next is not None:
                error, self.fail_next = self.fail_next, None
                raise error
            return run(output)

        engine.executor.execute_model = gated  # type: ignore[method-assign]
        return engine


@contextmanager
def live_engine(
    *,
    clock: Callable[[], Clock] = PausableClock,
    gate: Gate | None = None,
    config: EngineConfig | None = None,
    knobs: dict[str, Any] | None = None,
    factory: Callable[..., Engine] | None = None,
    **options: Any,
) -> Iterator[LiveEngine]:
    """A launched engine; `knobs` as for `scripted_engine`."""

    def build(wanted: EngineConfig, progress: Callable[[str], None]) -> Engine:
        progress("writing the script")
        if factory is not None:
            return factory(wanted, progress)
        engine = scripted_engine(clock=clock(), **(knobs or {}))
        return gate.wrap(engine) if gate is not None else engine

    live = LiveEngine(config or EngineConfig(model="tiny", dtype="float32"), engine_factory=build, **options)
    live.launch()
    try:
        yield live
    finally:
        if gate is not None:
            gate.open.set()
        live.close()
        assert not live.is_alive


def wait_until(condition: Callable[[], object], timeout_s: float = PATIENCE_S, what: str = "the condition") -> None:
    """Poll a condition; a test that waits for ever says for what."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, f"{what} did not come true within {timeout_s} s"
        time.sleep(0.005)


def ready(live: LiveEngine) -> LiveEngine:
    """Wait for the start to be over."""
    wait_until(lambda: live.latest().state not in ("starting",), what="the end of the start")
    assert live.latest().state != "failed", live.latest().message
    return live


def settled(live: LiveEngine) -> EngineSnapshot:
    """A picture that was begun after this call and shows nothing live: all that has ended by now is counted in it."""
    asked_s = WallClock().now()

    def at_rest() -> bool:
        now = live.latest()
        return now.wall_time_s > asked_s and not (now.num_running or now.num_waiting or now.num_preempted)

    wait_until(at_rest, what="a picture of an engine at rest")
    return live.latest()


def crowding() -> float:
    """How many times longer things take because other processes want the cores; 1 on a quiet machine.

    Counted now as well as over the last minute: the load average is slow to see what has just begun.
    """
    now = int(Path("/proc/loadavg").read_text().split()[3].split("/")[0])
    return max(max(now, *os.getloadavg()) / (os.cpu_count() or 1), 1.0)


def finished(live: LiveEngine, request_id: str) -> str:
    """Wait for a request's end and return its reason."""
    stream = live.stream(request_id)
    wait_until(lambda: stream.end is not None, what=f"the end of {request_id}")
    assert stream.end is not None
    return stream.end.reason


def with_model(config: EngineConfig, **knobs: Any) -> EngineConfig:
    """A changed configuration."""
    return replace(config, **knobs)
