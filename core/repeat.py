"""A bundle run again: is the schedule the same, and, if asked, does the model give the same tokens?

schedule   recorded commands, times and tokens -> scheduler -> decision == recorded decision ?
model      recorded decision -> forward pass -> sampled tokens == recorded tokens ?
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from core.bundle import RunBundle
from core.clock import VirtualClock
from core.errors import BatchscopeError, BundleError
from core.executor import Executor
from core.factory import create_engine
from core.output_processor import TextCodec
from core.outputs import ModelRunnerOutput, SchedulerOutput
from core.replay import Divergence, Replay, ReplayDivergedError, ReplayExecutor
from core.run_entries import CommandEntry, FailureEntry
from core.run_record import RunRecord

OnStep = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """Tokens of the forward passes that were run again beside the recorded ones; `first` is (step, request id)."""

    compared: int = 0
    different: int = 0
    first: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Repetition:
    """How a repetition went.

    Attributes:
        steps: decisions that were compared; `total` were recorded.
        divergence: the first difference in the schedule, None if every decision was the recorded one.
        tokens: None if the model was not run.
    """

    steps: int
    total: int
    divergence: Divergence | None = None
    tokens: TokenCheck | None = None

    @property
    def identical(self) -> bool:
        """True if schedule (and tokens, where they were compared) came out as recorded."""
        return self.divergence is None and (self.tokens is None or self.tokens.different == 0)

    def sentences(self) -> list[str]:
        """The outcome in words."""
        if self.divergence is None:
            lines = [f"The schedule came out identical: {self.steps} of {self.total} recorded decisions."]
        else:
            lines = [f"The schedule came out different after {self.steps} identical decisions. {self.divergence}"]
        if self.tokens is not None:
            same = self.tokens.compared - self.tokens.different
            lines.append(f"The model gave {same} of {self.tokens.compared} tokens as recorded.")
            if self.tokens.first is not None:
                lines.append(f"The first other token is that of request {self.tokens.first[1]} in step {self.tokens.first[0]}.")
        return lines


class _ModelReplay(ReplayExecutor):
    """Runs each recorded decision on a model and compares what it samples; the record's answer is what counts."""

    def __init__(self, record: RunRecord, clock: VirtualClock, inner: Executor) -> None:
        super().__init__(record, clock)
        self._inner = inner
        self.tokens = TokenCheck()

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        recorded = super().execute_model(scheduler_output)
        again = dict(self._inner.execute_model(scheduler_output).sampled)
        others = [request_id for request_id, token in recorded.sampled if again.get(request_id) != token]
        before = self.tokens
        first = before.first or ((scheduler_output.step, others[0]) if others else None)
        self.tokens = TokenCheck(before.compared + len(recorded.sampled), before.different + len(others), first)
        return recorded

    def resize(self, num_blocks: int, block_size: int, num_swap_blocks: int) -> None:
        super().resize(num_blocks, block_size, num_swap_blocks)
        self._inner.resize(num_blocks, block_size, num_swap_blocks)

    def close(self) -> None:
        self._inner.close()


def needs_text(bundle: RunBundle) -> bool:
    """True if a request of the run had stop strings, so that its end depends on text."""
    commands = (e.command for e in bundle.record.entries if isinstance(e, CommandEntry))
    return any(getattr(getattr(c, "sampling", None), "stop", ()) for c in commands)


def codec_of(bundle: RunBundle) -> TextCodec | None:
    """The tokenizer of the bundle's model; None for a simulated run, or where the model is not on this machine.

    Raises:
        BundleError: if the run cannot be replayed without it.
    """
    config = bundle.record.header.config
    if config.executor == "simulated":
        return None
    from core.runtime.model_source import open_model  # only where a model ran

    try:
        return open_model(config.model, spec=config.spec, seed=config.seed).tokenizer()
    except BatchscopeError as error:
        if needs_text(bundle):
            raise BundleError(
                f"requests of this run end at stop strings, so a replay needs the tokenizer of {config.model}: {error}"
            ) from error
        return None


def repeat(bundle: RunBundle, *, with_model: bool = False, on_step: OnStep | None = None, check_laws: bool = True) -> Repetition:
    """Repeat a bundle's run.

    Args:
        with_model: run the forward passes again too, and compare their tokens.
        on_step: called with (steps done, steps recorded).

    Raises:
        BundleError: if the model is asked for and steps of the run failed: nothing says what was in its cache then.
    """
    record = bundle.record
    total = sum(1 for _ in record.outputs())
    run = Replay(record, tokenizer=codec_of(bundle), check_laws=check_laws)
    if with_model:
        if any(isinstance(e, FailureEntry) for e in record.entries):
            raise BundleError("steps of this run failed, so the model cannot be run again on its decisions; leave the model out")
        run.use(_ModelReplay(record, run.clock, _executor_of(record)))
    steps, divergence = 0, None
    try:
        while run.advance():
            steps += 1
            if on_step is not None:
                on_step(steps, total)
    except ReplayDivergedError as error:
        divergence = error.divergence
    finally:
        run.executor.close()
    tokens = run.executor.tokens if isinstance(run.executor, _ModelReplay) else None
    return Repetition(steps, total, divergence, tokens)


def _executor_of(record: RunRecord) -> Executor:
    """The executor that the run had, made again; in this process, because nobody waits for it."""
    config = record.header.config
    if config.executor == "worker":
        config = dataclasses.replace(config, executor="inprocess")
    return create_engine(config).executor
