"""A whole run in virtual time: the live engine's scheduler, a cost model for an executor, arrivals from anywhere.

    arrivals due -> add_request -> schedule(now) -> price, clock += seconds -> update_from_output -> sums
    nothing to run: the clock jumps to the next arrival, deadline or quota

No snapshot, no text, no history: what a what-if needs is summed up as it happens. The decisions are those of
`core.engine` given the same arrivals and the same seconds, because the same `Scheduler` makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import compress
from typing import Protocol

from core.clock import VirtualClock
from core.errors import BatchscopeError, ConfigError, RequestRefused
from core.outputs import SchedulerOutput
from core.request import SLO, Request, SamplingParams
from core.scheduler import Scheduler
from core.sim_executor import SimExecutor
from core.sim_metrics import RequestSums, WorkSums
from core.sim_result import SimulationResult, build_result
from core.sim_series import ThinnedSeries
from core.sim_setup import SimulationSetup, setup_on_device
from core.workload import Arrival

__all__ = [
    "ArrivalList",
    "Load",
    "NothingFinished",
    "Simulation",
    "SimulationResult",
    "SimulationSetup",
    "setup_on_device",
    "simulate",
]

EMPTY_STEP_WAIT_S = 1e-3
MAX_EMPTY_STEPS = 10_000
CHECK_EVERY = 64


@lru_cache(maxsize=4096)
def _sampling(max_tokens: int) -> SamplingParams:
    """Parameters of a request that runs to `max_tokens`."""
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)


class NothingFinished(BatchscopeError):
    """Not one request of a simulated load ended: an error, not a result."""


class Load(Protocol):
    """What feeds a run; `core.workload.LoadGenerator` is one."""

    @property
    def next_time_s(self) -> float | None: ...

    def due(self, now_s: float, limit: int | None = None) -> list[Arrival]: ...

    def on_end(self, user: int, now_s: float) -> None: ...


class ArrivalList:
    """A load from arrivals in order of time, read one ahead; origin: `start_s` is the first one's time if not given."""

    def __init__(self, arrivals: Iterable[Arrival]) -> None:
        self._rest: Iterator[Arrival] = iter(arrivals)
        self._next = next(self._rest, None)

    @property
    def next_time_s(self) -> float | None:
        """Time of the next arrival, None after the last."""
        return self._next.time_s if self._next is not None else None

    def due(self, now_s: float, limit: int | None = None) -> list[Arrival]:
        """Arrivals up to `now_s`.

        Raises:
            ConfigError: if the arrivals are not in order of time.
        """
        found: list[Arrival] = []
        while self._next is not None and self._next.time_s <= now_s and (limit is None or len(found) < limit):
            found.append(self._next)
            self._next = next(self._rest, None)
            if self._next is not None and self._next.time_s < found[-1].time_s:
                raise ConfigError(f"arrival {self._next.index} comes before arrival {found[-1].index} in time; sort them")
        return found

    def on_end(self, user: int, now_s: float) -> None:
        """Open loop: nothing follows."""


class Simulation:
    """One run; `run` it to its end, or `step` it to watch.

    Args:
        on_step: called after each step with (decision, result, start s, end s); for replays and tests.
        quiet: book steps by columns, without events and stories; a step's result is then None for `on_step`. The
            decisions are the same, three times as fast.
    """

    def __init__(
        self, setup: SimulationSetup, load: Load, *, on_step: Callable[..., None] | None = None, quiet: bool = True
    ) -> None:
        self.setup = setup
        self.load = load
        self.clock = VirtualClock(load.next_time_s or 0.0)
        self.start_s = self.clock.now()
        spec = setup.cost.spec
        self.executor = SimExecutor(setup.cost, setup.timer, self.clock, setup.cache, seed=setup.seed)
        self.scheduler = Scheduler(
            setup.scheduler,
            setup.cache,
            max_model_len=setup.model_len,
            eos_token_ids=spec.eos_token_ids,
            seed=setup.seed,
            kv_bytes_per_token=setup.cost.kv_read_per_token,
        )
        self.requests = RequestSums()
        self.sums = WorkSums(setup.cost, setup.device)
        self.series = ThinnedSeries()
        self.bound_s: dict[str, float] = {}
        self.refused: dict[str, int] = {}
        self.refusal_message = ""
        self.submitted = 0
        self._users: dict[str, int] = {}
        self._empty_steps = 0
        self.tokens_before = 0  # output tokens before the figures began
        self._on_step = on_step
        self._quiet = quiet
        if quiet:
            self.scheduler.tell_no_stories()

    def run(
        self,
        *,
        max_time_s: float | None = None,
        max_steps: int | None = None,
        warm_up_s: float = 0.0,
        should_stop: Callable[[], bool] | None = None,
        on_progress: Callable[[int, float], None] | None = None,
    ) -> SimulationResult:
        """Run to the end of the load, or to a limit, or until `should_stop`.

        Args:
            max_time_s: virtual seconds after the first arrival, or after the warm-up.
            warm_up_s: virtual seconds after which all figures begin anew, with the requests that run then; those that end
                later count from their arrival. For a span out of the middle of a run.
            on_progress: called now and then with (requests ended, virtual time s).

        Raises:
            NothingFinished: if requests were sent and not one ended.
        """
        warm_s = self.start_s + warm_up_s
        end_s = None if max_time_s is None else warm_s + max_time_s
        while self.advance():
            if warm_up_s and self.clock.now() >= warm_s:
                self._begin_anew()
                warm_up_s = 0.0
            if self.sums.steps % CHECK_EVERY == 0:
                if should_stop is not None and should_stop():
                    break
                if on_progress is not None:
                    on_progress(self.requests.finished + self.requests.cancelled, self.clock.now())
            if (end_s is not None and self.clock.now() >= end_s) or (max_steps is not None and self.sums.steps >= max_steps):
                break
        result = self.result()
        if self.submitted and not result.finished:
            refused = ", ".join(f"{count} refused ({reason})" for reason, count in self.refused.items())
            raise NothingFinished(
                f"0 of {self.submitted} requests finished in {result.duration_s:.4g} virtual seconds"
                f"{': ' + refused if refused else ''}{'; e.g. ' + self.refusal_message if self.refusal_message else ''}"
            )
        return result

    def _begin_anew(self) -> None:
        """Forget all sums; requests and cache stay as they are."""
        self.start_s = self.clock.now()
        self.requests, self.sums = RequestSums(), WorkSums(self.setup.cost, self.setup.device)
        self.series, self.bound_s, self.refused, self.refusal_message = ThinnedSeries(), {}, {}, ""
        self.submitted = len(self.scheduler.requests)
        self.tokens_before = sum(r.num_output_tokens for r in self.scheduler.requests.values())

    def result(self) -> SimulationResult:
        """The sums so far as a result."""
        return build_result(self)

    def advance(self) -> bool:
        """Submit what is due and run one step, or jump; False at the end."""
        now = self.clock.now()
        next_s = self.load.next_time_s
        if next_s is not None and next_s <= now:
            for arrival in self.load.due(now):
                self._submit(arrival)
        if not self.scheduler.has_work():
            next_s = self.load.next_time_s
            if next_s is None:
                return False
            self.clock.advance_to(next_s)
            return True
        self._step(now)
        return True

    def _submit(self, arrival: Arrival) -> None:
        request_id = f"r{arrival.index}"
        setup = self.setup
        slo = setup.slo
        if arrival.slo_ttft_s is not None or arrival.slo_itl_s is not None:
            slo = SLO(arrival.slo_ttft_s, arrival.slo_itl_s)
        request = Request(
            request_id,
            arrival.prompt_token_ids,
            _sampling(arrival.max_tokens),
            arrival.time_s,
            tenant=arrival.tenant,
            priority=arrival.priority,
            slo=slo,
        )
        self.submitted += 1
        self.requests.tenant(arrival.tenant).submitted += 1
        try:
            self.scheduler.add_request(request)
        except RequestRefused as refusal:
            self.refused[refusal.reason] = self.refused.get(refusal.reason, 0) + 1
            self.refusal_message = self.refusal_message or str(refusal)
            self.scheduler.pop_ended()
            if arrival.user >= 0:
                self.load.on_end(arrival.user, self.clock.now())
            return
        if arrival.user >= 0:
            self._users[request_id] = arrival.user

    def _step(self, start_s: float) -> None:
        scheduler = self.scheduler
        output = scheduler.schedule(start_s)
        result = None
        if self._quiet:
            tokens = self.executor.run(output)
            now = self.clock.now()
            scheduler.update_quietly(tokens, now)
        else:
            result = self.executor.execute_model(output)
            now = self.clock.now()
            scheduler.update_from_output(output, result, now)
        if output.request_ids:
            self._empty_steps = 0
            self._note(output, start_s, now)
        else:
            self._jump(now)
        for request in scheduler.pop_ended():
            self.requests.end(request)
            user = self._users.pop(request.request_id, None)
            if user is not None:
                self.load.on_end(user, now)
        if self._on_step is not None:
            self._on_step(output, result, start_s, self.clock.now())

    def _jump(self, now: float) -> None:
        """Nothing could run: go on at the next arrival or wake-up, or a millisecond later."""
        self._empty_steps += 1
        if self._empty_steps > MAX_EMPTY_STEPS:
            raise NothingFinished(f"the scheduler ran nothing in {MAX_EMPTY_STEPS} steps in a row at {now:.4g} s")
        times = [t for t in (self.load.next_time_s, self.scheduler.next_wakeup(now)) if t is not None]
        if times and min(times) > now:
            self.clock.advance_to(min(times))
        elif self.clock.now() <= now:
            self.clock.advance(EMPTY_STEP_WAIT_S)

    def _note(self, output: SchedulerOutput, start_s: float, now: float) -> None:
        priced, scheduler = self.executor.last, self.scheduler
        assert priced is not None
        s, duration_s = self.sums, now - start_s
        s.add_step(duration_s, priced.run, priced.useful, priced.swap_bytes, priced.copy_bytes)
        if True in output.is_prefill:
            s.prefill_tokens += sum(compress(output.num_scheduled_tokens, output.is_prefill))
        queued = output.num_waiting + len(scheduler.preempted)
        if queued:
            s.waited_steps += 1
            s.full_steps += output.full_batch
        s.preemptions += len(output.preemptions)
        usage = scheduler.kv.pool.num_live / scheduler.kv.num_blocks
        if usage > s.peak_kv_usage:
            s.peak_kv_usage = usage
        bound = output.bound_by.value
        self.bound_s[bound] = self.bound_s.get(bound, 0.0) + duration_s
        self.series.add(start_s, duration_s, output.num_running, queued, usage, priced.useful.sampled)


def simulate(
    setup: SimulationSetup,
    load: Load | Iterable[Arrival],
    *,
    max_time_s: float | None = None,
    max_steps: int | None = None,
    should_stop: Callable[[], bool] | None = None,
    on_progress: Callable[[int, float], None] | None = None,
) -> SimulationResult:
    """Run a load (a `LoadGenerator`, or arrivals in order of time) under a setup; see `Simulation.run`."""
    feed: Load = ArrivalList(load) if isinstance(load, Iterable) else load
    return Simulation(setup, feed).run(
        max_time_s=max_time_s, max_steps=max_steps, should_stop=should_stop, on_progress=on_progress
    )
