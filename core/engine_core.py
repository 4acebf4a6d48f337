"""The loop: one step is decide, run, note. No thread, no input or output, no clock but the one it was given.

    commands (between steps) -> schedule(now) -> execute_model(decision) -> update_from_output -> record, events
                                  scheduler    |   executor                   scheduler
                                               +-- between launches: prepare_model -> submissions -> late_join

The core owns neither the decision (Scheduler) nor the forward pass (Executor); it carries plain values from one to
the other and keeps the books. It belongs to one thread. `core.engine.Engine` is its face for callers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from core.bookkeeping import Books
from core.clock import Clock
from core.config import AdmissionMoment, CacheConfig, EngineConfig, check_pair
from core.cost_model import CostModel
from core.engine_commands import Cancel, EngineCommand, Recompute, Recover, Reset, SetCache, SetPriority, SetScheduler, Submit
from core.engine_laws import EngineLaws
from core.errors import ConfigError, ExecutorError, RequestRefused, WorkerDied
from core.executor import Executor, ExecutorInfo, PreparingExecutor, RemoteExecutor
from core.intake import request_of
from core.kv_cache_manager import resets_pool
from core.output_processor import OutputProcessor, TextCodec
from core.outputs import ModelRunnerOutput, RequestEvent, SchedulerOutput
from core.run_record import RunHeader, RunRecorder
from core.scheduler import Scheduler
from core.snapshot_rows import refused_row
from core.step_record import StepCounts, StepTimes, build_step_record, step_counts, step_times
from core.telemetry import Telemetry

MAX_RESTARTS_IN_A_ROW = 3


class EngineCore:
    """Continuous batching over any executor and any clock.

    Args:
        scheduler: decides; its `text_stop` and `text_rows` are set here.
        executor: runs the steps.
        clock: the only source of time; the executor's own if that moves a virtual clock.
        config: for snapshots and records; None describes the parts given.
        tokenizer: None for an engine that knows only token ids.
        recorder: keeps what a replay needs.
        check_laws: check the conservation laws after every step and command; None follows the configuration.

    Attributes:
        failed: True after an executor error; `step` then does nothing until `recover` or `reset`.
        between_launches: under AdmissionMoment.BETWEEN_LAUNCHES called once a step, when its batch is decided and
            prepared and not launched yet; it may submit, and nothing else.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Clock,
        *,
        config: EngineConfig | None = None,
        tokenizer: TextCodec | None = None,
        recorder: RunRecorder | None = None,
        check_laws: bool | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.clock = clock
        self.config = replace(config or EngineConfig(), scheduler=scheduler.config, cache=scheduler.cache)
        self.tokenizer = tokenizer
        self.recorder = recorder
        self.telemetry = Telemetry(self.config.history_steps)
        self.failed = False
        self.between_launches: Callable[[], None] | None = None
        self.check_laws = self.config.check_invariants if check_laws is None else check_laws
        self._text = OutputProcessor(tokenizer)
        self._books = Books(scheduler, self._text, self.telemetry)
        self._laws = EngineLaws()
        self._last_output: SchedulerOutput | None = None
        self._restarts_in_a_row = 0
        self._late_s: float | None = None  # between decision and launch: time of the latest submission
        scheduler.text_stop = self._text.text_stop
        scheduler.text_rows = self._text.text_rows
        self._read_info()
        if recorder is not None:
            header = RunHeader(self.config, self.info, scheduler.max_model_len, tuple(sorted(scheduler.eos_token_ids)))
            recorder.begin(header)

    def _read_info(self) -> None:
        self.info: ExecutorInfo = self.executor.info
        self._cost = CostModel.of(
            self.info.spec,
            weight_dtype=self.info.dtype if self.config.weight_dtype == "same" else self.config.weight_dtype,
            kv_dtype=self.info.dtype,
            head_dtype=self.info.dtype,
            activation_dtype=self.info.dtype,
            weight_bytes_read=self.info.weight_bytes_read,
            kv_bytes_per_token=self.info.kv_bytes_per_token,
            coded_tokens=self.info.coded_tokens,
            coded_bytes_read=self.info.coded_bytes_read,
        )

    def apply(self, command: EngineCommand) -> None:
        """Carry out a command between two steps; errors as those of the methods above.

        Raises:
            ConfigError: for anything but a submission while a decided step waits to be launched.
        """
        now = self.clock.now()
        step = self.scheduler.step
        late = self._late_s is not None
        if late:
            if not isinstance(command, Submit):
                raise ConfigError(f"{type(command).__name__} must wait for the step boundary: a decided step is being launched")
            self._late_s = now
        match command:
            case Submit():
                self._submit(command, now)
            case Cancel(request_id):
                self._books.write([self.scheduler.abort(request_id, now)])
            case SetPriority(request_id, priority):
                self.scheduler.set_priority(request_id, priority, now)
            case SetScheduler(config):
                self._books.write(self.scheduler.set_config(config, now))
                self.config = replace(self.config, scheduler=config)
            case SetCache(config):
                self._set_cache(config, now)
            case Reset():
                self._reset(now)
            case Recover():
                self._recover()
            case Recompute():
                self._books.write(self.scheduler.forget_kv(now))
        if self.recorder is not None:
            self.recorder.on_command(step, now, command, late=late)
        if self.check_laws and not late:  # a decision without its late joins is half a decision; the step checks it
            self.check_invariants()

    def _submit(self, command: Submit, now: float) -> None:
        request = request_of(command, now)
        try:
            self.scheduler.add_request(request)
        except RequestRefused as refusal:
            self._books.refused(refusal, refused_row(command, now), before_scheduler=False)
            raise
        self._text.add(request)
        self._books.accepted(request, command.source)

    def _set_cache(self, config: CacheConfig, now: float) -> None:
        check_pair(self.config.scheduler, config)
        old = self.config.cache
        if resets_pool(old, config):
            try:
                self.executor.resize(config.num_blocks, config.block_size, config.num_swap_blocks)
                events = self.scheduler.set_cache(config, now)
            except (ConfigError, ExecutorError):
                self._restore_pool(old)
                raise
            self._read_info()
        else:
            events = self.scheduler.set_cache(config, now)
        self._books.write(events)
        self.config = replace(self.config, cache=config)

    def _restore_pool(self, cache: CacheConfig) -> None:
        """Go back to the old size after a failed change; what ran is recomputed."""
        self.apply(Recompute())
        try:
            self.executor.resize(cache.num_blocks, cache.block_size, cache.num_swap_blocks)
        except (ConfigError, ExecutorError) as error:
            self.failed = True
            self._books.say(f"the pool could not be restored: {error}; requests are kept, reset or try again")

    def _recover(self) -> None:
        if isinstance(self.executor, RemoteExecutor):
            self.executor.revive()
        self.failed = False
        self._restarts_in_a_row = 0
        self._books.say("")

    def _reset(self, now: float) -> None:
        self._books.write([self.scheduler.abort(request_id, now) for request_id in list(self.scheduler.requests)])
        self._books.write(self.scheduler.forget_kv(now))
        self.scheduler.forget_preemptions()
        self._recover()
        cache = self.config.cache
        self.executor.resize(cache.num_blocks, cache.block_size, cache.num_swap_blocks)
        self._books.reset()
        self._laws.reset()
        self._last_output = None

    # -- the step ------------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        """True if `step` would do or return something."""
        return self._books.has_events or (not self.failed and self.scheduler.has_work())

    def step(self) -> list[RequestEvent]:
        """Run one step; return the events since the last one, those of commands included.

        An executor's error does not raise: a dead worker's requests are recomputed, anything else sets `failed`.
        """
        if self.failed or not self.scheduler.has_work():
            return self._books.hand_over()
        clock, scheduler = self.clock, self.scheduler
        counted = scheduler.counters
        cached, queried = counted.cached_tokens, counted.queried_tokens
        refaults = scheduler.kv.pool.num_refaults
        start_s = clock.now()
        between = scheduler.config.admission_moment is AdmissionMoment.BETWEEN_LAUNCHES
        output = scheduler.schedule(start_s, hold_late=between)
        decided_s = clock.now()
        try:
            if between:
                output, error = self._read_late(output, start_s)
                if error is not None:
                    raise error
            result = self.executor.execute_model(output)
            clock.on_step_end()
            answered_s = clock.now()
            events = scheduler.update_from_output(output, result, answered_s)
        except ExecutorError as error:
            self._lose_step(output, start_s, error)
            return self._books.hand_over()
        served = tuple([e.request_id for e in events if e.kind == "token"])
        self.telemetry.latency.on_step_tokens(served, answered_s)
        finished = self._books.write(events)
        if self.recorder is not None:
            self.recorder.on_step(start_s, answered_s, output, result)
        self._last_output = output
        self._restarts_in_a_row = 0
        if output.request_ids:
            kv, config = scheduler.kv, self.config.scheduler
            counts = step_counts(
                pool=kv.counts(),
                slots_used=scheduler.slots_used(),
                num_preempted=len(scheduler.preempted),
                output_tokens=len(served),
                finished=finished,
                cached_tokens=counted.cached_tokens - cached,
                queried_tokens=counted.queried_tokens - queried,
                budget_tokens=config.max_num_batched_tokens,
                max_num_seqs=config.max_num_seqs,
                refaulted_tokens=(kv.pool.num_refaults - refaults) * kv.block_size,
            )
            self._note(output, result, step_times(start_s, decided_s, answered_s, clock.now()), counts)
        if self.check_laws:
            config = self.config.scheduler
            self._laws.on_step(output, events, budget_tokens=config.max_num_batched_tokens, max_num_seqs=config.max_num_seqs)
            self.check_invariants()
        return self._books.hand_over()

    def _read_late(self, output: SchedulerOutput, start_s: float) -> tuple[SchedulerOutput, ExecutorError | None]:
        """Have the decided shape prepared, take late submissions, decide again; the decision, and how preparing failed."""
        error: ExecutorError | None = None
        if output.request_ids and isinstance(self.executor, PreparingExecutor):
            try:
                self.executor.prepare_model(output)
            except ExecutorError as failure:
                error = failure  # the decision is amended all the same, so that a replay finds the same one
        self._late_s = start_s
        try:
            if self.between_launches is not None:
                self.between_launches()
            return self.scheduler.late_join(self._late_s) or output, error
        finally:
            self._late_s = None

    def _note(self, output: SchedulerOutput, result: ModelRunnerOutput, times: StepTimes, counts: StepCounts) -> None:
        if self.info.kind == "measured" and self.executor.info is not self.info:
            self._read_info()  # other kernels have taken over
        record = build_step_record(
            output,
            result,
            times,
            counts,
            self._cost,
            block_bytes=self.info.kv_bytes_per_token * self.info.block_size,
            kind=self.info.kind,
        )
        self.telemetry.on_step(record, counts.queried_tokens)
        self._books.on_decision(output)

    def _lose_step(self, output: SchedulerOutput, start_s: float, error: ExecutorError) -> None:
        """The step did not come back: every running request is put back for recompute, none is lost."""
        now = self.clock.now()
        if self.recorder is not None:
            self.recorder.on_failure(start_s, now, output, error)
        running = self.scheduler.num_running
        self._books.write(self.scheduler.forget_kv(now))
        self._last_output = output
        self._books.on_decision(output)
        if isinstance(error, WorkerDied):
            self._books.worker_restarts += 1
            self._restarts_in_a_row += 1
            if self._restarts_in_a_row <= MAX_RESTARTS_IN_A_ROW:
                self._books.say(f"{error}; a new worker runs, {running} requests are recomputed")
                return
        self.failed = True
        self._books.say(f"step {output.step} failed: {error}; requests are kept, reset or try again")

    def check_invariants(self) -> None:
        """Check every conservation law now (InvariantError with the numbers, and the story of the request concerned)."""
        scheduler = self.scheduler
        scheduler.check_invariants()
        self._laws.on_books(
            self._books.totals(),
            scheduler.num_waiting,
            scheduler.num_running,
            len(scheduler.preempted),
            scheduler.kv.counts(),
        )

    def close(self) -> None:
        """Free the executor; calling it twice is harmless."""
        self.executor.close()
