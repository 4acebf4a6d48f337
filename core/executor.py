"""The seam between deciding and doing: one method runs a step.

Implementations: `runtime.model_runner` (real model in process), `runtime.worker` (the same in a process of
its own), `sim_executor` (cost model, moves a virtual clock), `replay` (a recorded run).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from core.model_spec import ModelSpec
from core.outputs import ModelRunnerOutput, SchedulerOutput


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """What runs the steps, for labels and for the cost model.

    Attributes:
        weight_bytes: bytes of all stored weights.
        weight_bytes_read: bytes of weights that one step reads (the embedding table is looked up, a tied head is read).
        coded_tokens: a step of at most so many tokens reads a coded copy of the weights; 0 where there is none.
        coded_bytes_read: bytes of weights that such a step reads.
        kv_bytes_per_token: bytes of keys and values of one token over all layers, from the real tensors.
        fallback: "" or why a synthetic model stands in for the one asked for.
        kernels: names of the code paths in use, e.g. "numba paged attention".
        graphs: "" or which steps are launched as CUDA graphs, in words; how often that happens is counted in `Totals`.
    """

    spec: ModelSpec
    model_label: str
    device: str
    dtype: str
    weight_bytes: int
    weight_bytes_read: int
    kv_bytes_per_token: int
    block_size: int
    num_blocks: int
    num_threads: int = 0
    fallback: str = ""
    kernels: str = ""
    graphs: str = ""
    kind: str = "measured"  # "measured", "predicted" or "replayed"
    coded_tokens: int = 0
    coded_bytes_read: int = 0


class Executor(Protocol):
    """Runs one step. Called by the engine's thread only."""

    @property
    def info(self) -> ExecutorInfo: ...

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Run the step.

        Raises:
            WorkerDied: the process is gone; the executor has already begun a new one with an empty cache.
            ExecutorError: anything else that went wrong in the forward pass.
        """
        ...

    def resize(self, num_blocks: int, block_size: int, num_swap_blocks: int) -> None:
        """Give the pool another size; every block is empty afterwards, every request forgotten."""
        ...

    def close(self) -> None:
        """Free memory and processes; calling it twice is harmless."""
        ...


@runtime_checkable
class PreparingExecutor(Protocol):
    """What an executor offers that can build a batch before it is told to launch it."""

    def prepare_model(self, scheduler_output: SchedulerOutput) -> None:
        """Take over a decision and build its batch.

        `execute_model` of the same step then launches it if rows and tokens are still those, else prepares what has
        changed and reports the time of the void batch as `StepTiming.discarded_s`. Errors as `execute_model`.
        """
        ...


@runtime_checkable
class RemoteExecutor(Protocol):
    """What an executor in another process offers to whoever runs the loop, beside `Executor`."""

    @property
    def progress(self) -> str:
        """What a loading process does; "" once it is ready."""
        ...

    def poll_ready(self, timeout_s: float = 0.0) -> bool:
        """Look after the process between steps; True if a step would not have to wait for a load.

        Raises:
            ExecutorError: if it has failed for good or was closed.
        """
        ...

    def revive(self) -> None:
        """Start a process again after a failure for good; harmless otherwise."""
        ...

    def close(self) -> None:
        """As `Executor.close`, from any thread, even in the middle of a step."""
        ...
