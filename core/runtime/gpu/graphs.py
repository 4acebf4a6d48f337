"""Decode steps as captured graphs: which shapes there are, how a batch is padded to one, and what became of each step.

    rows of a step   1  2  3 .. 4  5 .. 8  9 .. 16  17 .. 24  ...     one graph for each bucket, made when it is first
    bucket           1  2     4       8       16        24    ...     needed, while there is memory left for graphs

    hit    the bucket's graph is replayed on the step's inputs        "graph hit 32"
    miss   the step runs operation by operation, and a graph of it is captured for the next one   "graph miss 32"
           ... or none is, because the bound on rows or memory is reached, or a capture failed    "graph miss"

A graph holds addresses: of weights, keys and values, and of its inputs and logits. Whoever changes one of them (another
pool, another model) makes a new object; another `max_num_seqs` needs none. What captures and replays is injected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import torch

from core.runtime.backend import StepBatch
from core.runtime.gpu.inputs import StepInputs

_LOG = logging.getLogger(__name__)
_POWERS_UP_TO = 8
_GRAIN = 8


class Graph(Protocol):
    """Work that was captured once and can be launched again as a whole."""

    def replay(self) -> None:
        """Launch it; reads and writes the addresses of its capture."""
        ...


class Capturer(Protocol):
    """Makes graphs."""

    def capture(self, run: Callable[[], None]) -> Graph:
        """Record what `run` launches, without running it.

        Raises:
            RuntimeError: if something in it cannot be captured.
        """
        ...

    @property
    def held_bytes(self) -> int:
        """Device memory that the graphs made so far keep for themselves."""
        ...


def bucket_of(rows: int) -> int:
    """Smallest captured batch size that holds `rows`: 1, 2, 4, 8, then multiples of 8."""
    if rows <= _POWERS_UP_TO:
        return 1 << (rows - 1).bit_length()
    return -(-rows // _GRAIN) * _GRAIN


class DecodeGraphs:
    """Runs decode-only steps through graphs.

    Args:
        capturer: makes graphs.
        compute: launches a step of (rows, width) from `inputs` and leaves its logits in the first `rows` rows of
            `logits`; must do the same work for the same arguments, whatever the inputs hold.
        inputs: read by `compute`; room for `max_rows` rows.
        logits: [max_rows, vocab_size], written by `compute`.
        scratch_block, block_size: where padding rows write, see `StepInputs.write_decode`.
        max_rows: steps of more rows are left to others.
        max_bytes: no more graphs are captured once they hold so much.
        by_width: what `compute` launches depends on the width, so each has a graph of its own.

    Attributes:
        captures, replays, misses: counts since the object was made; a capture is also a miss.
        launch: how the latest step was launched, in the words above.
        failure: "" or why there will be no more captures.
    """

    def __init__(
        self,
        capturer: Capturer,
        compute: Callable[[int, int], None],
        inputs: StepInputs,
        logits: torch.Tensor,
        *,
        scratch_block: int,
        block_size: int,
        max_rows: int,
        max_bytes: int,
        by_width: bool,
    ) -> None:
        self._capturer, self._compute, self._inputs, self._logits = capturer, compute, inputs, logits
        self._scratch_block, self._block_size = scratch_block, block_size
        self._max_rows, self._max_bytes, self._by_width = max_rows, max_bytes, by_width
        self._graphs: dict[tuple[int, int], Graph] = {}
        self.captures = self.replays = self.misses = 0
        self.launch = self.failure = ""

    @property
    def captured_rows(self) -> tuple[int, ...]:
        """Batch sizes that have a graph."""
        return tuple(sorted({rows for rows, _ in self._graphs}))

    @property
    def held_bytes(self) -> int:
        """Device memory of the graphs."""
        return self._capturer.held_bytes

    def run(self, batch: StepBatch, width: int) -> torch.Tensor | None:
        """Run a decode-only step; return [num_rows, vocab_size], valid until the next step, or None if it is too large.

        Args:
            width: blocks in a row of the tables; at least that of the batch's own.
        """
        rows = bucket_of(batch.num_rows)
        if rows > self._max_rows:
            self._missed("graph miss")
            return None
        self._inputs.write_decode(batch, rows, width, self._scratch_block, self._block_size)
        shape = (rows, width if self._by_width else 0)
        graph = self._graphs.get(shape)
        if graph is not None:
            graph.replay()
            self.replays += 1
            self.launch = f"graph hit {rows}"
        else:
            self._compute(rows, width)  # what a first run loads and compiles must not be captured; and it is this step's result
            self._missed(f"graph miss {rows}" if self._capture(shape, rows, width) else "graph miss")
        return self._logits[: batch.num_rows]

    def _missed(self, launch: str) -> None:
        self.misses += 1
        self.launch = launch

    def _capture(self, shape: tuple[int, int], rows: int, width: int) -> bool:
        if self.failure:
            return False
        if self._capturer.held_bytes >= self._max_bytes:
            self.failure = f"the {self._max_bytes / 2**20:,.0f} MiB for graphs are used up"
            _LOG.info("no more graphs: %s", self.failure)
            return False
        try:
            self._graphs[shape] = self._capturer.capture(lambda: self._compute(rows, width))
        except RuntimeError as error:
            self.failure = f"capture of {rows} rows failed: {error}"
            _LOG.warning("no more graphs: %s", self.failure, exc_info=True)
            return False
        self.captures += 1
        return True
