"""A sweep in the background: a thread that collects rows as worker processes finish them; a page polls `state`.

start -> running -> done | cancelled | failed          rows only grow
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from core.background import BackgroundWork
from core.clock import Clock, WallClock
from core.errors import BatchscopeError
from core.sweep import SweepRow, SweepSpec, run_sweep


@dataclass(frozen=True, slots=True)
class SweepState:
    """How far a sweep is.

    Attributes:
        phase: "running", "done", "cancelled" or "failed".
        seconds: since the start.
    """

    spec: SweepSpec
    phase: str = "running"
    rows: tuple[SweepRow, ...] = ()
    message: str = ""
    seconds: float = 0.0

    @property
    def is_running(self) -> bool:
        return self.phase == "running"


class SweepJob(BackgroundWork):
    """One sweep; see `core.sweep.run_sweep` for the arguments."""

    def __init__(self, spec: SweepSpec, *, n_jobs: int = 2, cluster: str = "", clock: Clock | None = None) -> None:
        super().__init__("sweep")
        self.state = SweepState(spec)
        self._n_jobs, self._cluster = n_jobs, cluster
        self._clock = clock or WallClock()

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def _run(self) -> None:
        began = self._clock.now()
        try:
            for row in run_sweep(self.state.spec, n_jobs=self._n_jobs, cluster=self._cluster, should_stop=self._cancelled.is_set):
                self.state = replace(self.state, rows=(*self.state.rows, row), seconds=self._clock.now() - began)
            self.state = replace(self.state, phase="cancelled" if self._cancelled.is_set() else "done")
        except BatchscopeError as error:
            self.state = replace(self.state, phase="failed", message=str(error))
        except Exception as error:  # a worker or a cluster that died: said on the page, the rows so far stay
            self.state = replace(self.state, phase="failed", message=f"{type(error).__name__}: {error}")
