"""The forward pass on a CUDA device behind the `Backend` protocol.

    decode-only step      padded to a bucket, inputs into fixed places, one graph launched      (graphs.py)
    any other step        operation by operation: prompts in chunks, mixed, padded rectangles
    operations            Triton kernels over the block table (TritonBackend), or PyTorch's SDPA over gathered
                          blocks (DeviceBackend) where there is no Triton or its kernels failed their check

Only matrix products and the look-up of the embedding are PyTorch's in both. The cache keeps the plain layout: one head of
one block lies in one piece, which is what a kernel reads. Row invariance is not promised here: cuBLAS picks a kernel
by the number of rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from core.model_spec import ModelSpec
from core.runtime.attention import padded_attention
from core.runtime.backend import KVCache, ModelWeights, StepBatch
from core.runtime.gpu.graphs import Capturer, DecodeGraphs
from core.runtime.gpu.inputs import Split, StepInputs
from core.runtime.gpu.triton_check import triton_problem
from core.runtime.model import run_layers
from core.runtime.plain_backend import PlainBackend

_LOG = logging.getLogger(__name__)
MOST_ROWS = 512
LEAST_ROWS = 256
GRAPH_MEMORY_SHARE = 0.05
_EMPTY = np.zeros(0, np.int32)
_NO_SPLIT = Split(_EMPTY, _EMPTY, _EMPTY)


def decode_shape(rows: int) -> StepBatch:
    """A decode step that has sizes and nothing else: what runs inside a graph may not look at a step's values."""
    none, none64 = np.zeros(rows, np.int32), np.zeros(rows, np.int64)
    return StepBatch(none, none, none64, none, np.arange(rows + 1, dtype=np.int32), none, np.zeros((rows, 0), np.int32), none64)


class DeviceBackend(PlainBackend):
    """Gathered attention for decode-only steps, the plain path for others; graphs if a capturer is given.

    Args:
        new_capturer: gives what makes the graphs of one pool; None runs every step operation by operation.
        max_rows: most rows of a captured step.
        max_graph_bytes: no more graphs are captured once they hold so much.
        reason: why this backend rather than the Triton one.

    Attributes:
        uses_graphs: False runs every step operation by operation; may be changed between two steps.
    """

    attention_name = "PyTorch SDPA over gathered blocks"
    reads_whole_tables = True
    """Gathered attention reads a row's table to its end, so each row length needs a graph of its own."""

    def __init__(
        self,
        new_capturer: Callable[[torch.device], Capturer] | None = None,
        *,
        max_rows: int = LEAST_ROWS,
        max_graph_bytes: int = 2**30,
        reason: str = "",
    ) -> None:
        super().__init__()
        self._new_capturer, self._max_rows, self._max_graph_bytes = new_capturer, max_rows, max_graph_bytes
        self._reason = reason
        self._static: StepInputs | None = None
        self._eager: StepInputs | None = None
        self._inputs: StepInputs
        self._graphs: DecodeGraphs | None = None
        self._logits = torch.empty(0)
        self._decode_rows = self._tiles = self._width = 0
        self._launch = "eager"
        self.uses_graphs = True

    @property
    def name(self) -> str:
        return f"{self.attention_name} ({self._reason})" if self._reason else self.attention_name

    @property
    def launch(self) -> str:
        """How the latest step was launched; see `ModelRunnerOutput.graph`."""
        return self._launch

    @property
    def graphs(self) -> DecodeGraphs | None:
        """The graphs of the present pool."""
        return self._graphs

    @property
    def graph_label(self) -> str:
        """Which steps are launched as graphs, in words; "" without any."""
        if self._graphs is None:
            return ""
        ended = f"; no further captures: {self._graphs.failure}" if self._graphs.failure else ""
        return f"decode-only steps of up to {self._max_rows} rows as CUDA graphs{ended}"

    def bind_cache(self, cache: KVCache) -> None:
        super().bind_cache(cache)
        self._graphs, self._static = None, None  # they hold the old pool's addresses
        if self._new_capturer is None or not cache.key.numel():
            return
        device, rows = cache.key.device, self._max_rows
        table = self._table_width(-(-len(self._weights.rope_cos) // cache.block_size))
        self._static = StepInputs(device, rows, rows, 0, rows * table)
        head = self._weights.head.weight
        if self._logits.shape != (rows, head.shape[0]):
            self._logits = torch.empty((rows, head.shape[0]), dtype=head.dtype, device=device)
        self._graphs = DecodeGraphs(
            self._new_capturer(device), self._run_decode, self._static, self._logits, scratch_block=cache.scratch_block,
            block_size=cache.block_size, max_rows=rows, max_bytes=self._max_graph_bytes, by_width=self.reads_whole_tables,
        )  # fmt: skip

    def forward(self, batch: StepBatch) -> torch.Tensor | None:
        """Run a decode-only step through a graph; the logits are overwritten by the next one."""
        self._launch = "eager"
        if self._graphs is None or not self.uses_graphs or batch.padded or not batch.is_decode_only:
            return None
        width = self._table_width(batch.block_tables.shape[1])
        logits = self._graphs.run(batch, width)
        self._launch = self._graphs.launch
        if logits is None:
            return None
        if len(batch.logits_indices) == batch.num_rows:
            return logits
        return logits[torch.from_numpy(batch.logits_indices).to(logits.device)]

    def close(self) -> None:
        self._graphs, self._static, self._eager = None, None, None
        self._logits = torch.empty(0)
        super().close()

    def begin_step(self, batch: StepBatch) -> None:
        split = self._split(batch)
        if self._eager is None or not self._eager.fits(batch, len(split.tile_rows)):
            wanted = (batch.num_tokens, batch.num_rows, len(split.tile_rows), batch.block_tables.size)
            had = (0, 0, 0, 0) if self._eager is None else self._eager.sizes
            room = [n if n <= old else 2 * n for n, old in zip(wanted, had, strict=True)]
            self._eager = StepInputs(self._cache.key.device, *(max(n, old) for n, old in zip(room, had, strict=True)))
        self._eager.write(batch, split)
        self._decode_rows, self._tiles = len(split.decode_rows), len(split.tile_rows)
        self._use(self._eager, batch.num_tokens, batch.num_rows, batch.block_tables.shape[1])

    def embed(self, batch: StepBatch) -> torch.Tensor:
        return F.embedding(self._inputs.token_ids[: batch.num_tokens], self._weights.embedding)

    def paged_attention(self, query: torch.Tensor, layer: int, batch: StepBatch) -> torch.Tensor:
        if batch.padded or not batch.is_decode_only:
            return super().paged_attention(query, layer, batch)
        out = padded_attention(
            query.unsqueeze(1), self._cache, layer, self._tables, self._positions.unsqueeze(1),
            self._width * self._cache.block_size, self._spec.sliding_window, self._compute_dtype,
        )  # fmt: skip
        return out.flatten(0, 1)

    @property
    def _compute_dtype(self) -> torch.dtype:
        """On a CPU that of the plain path; on a device the model's own, for which SDPA has fast kernels."""
        return self._compute if self._cache.key.device.type == "cpu" else self._cache.key.dtype

    def _split(self, batch: StepBatch) -> Split:
        return _NO_SPLIT

    def _table_width(self, blocks: int) -> int:
        """Row length of the tables of a captured step that needs `blocks`: few lengths, as there is a graph for each."""
        return 1 << (blocks - 1).bit_length()

    def _run_decode(self, rows: int, width: int) -> None:
        """See `DecodeGraphs`."""
        assert self._static is not None
        batch = decode_shape(rows)
        self._decode_rows, self._tiles = rows, 0
        self._use(self._static, rows, rows, width)
        self._logits[:rows].copy_(run_layers(self._weights, self, batch, None))

    def _use(self, inputs: StepInputs, tokens: int, rows: int, width: int) -> None:
        """Point the operations at a step's arrays."""
        self._inputs, self._width = inputs, width
        self._positions = inputs.positions[:tokens].to(torch.int64)
        self._slots = inputs.slots[:tokens]
        self._tables = inputs.tables[: rows * width].view(rows, width).to(torch.int64)
        self._cos, self._sin = self._weights.rope_cos[self._positions], self._weights.rope_sin[self._positions]


def create_backend(spec: ModelSpec, weights: ModelWeights, max_num_seqs: int) -> DeviceBackend:
    """Return the fastest backend whose kernels give the plain path's numbers on the device of `weights`.

    Args:
        max_num_seqs: seats at the start; graphs cover LEAST_ROWS at least and MOST_ROWS at most.
    """
    from core.runtime.gpu.cuda_graph import CudaCapturer

    device = weights.embedding.device
    _, memory = torch.cuda.mem_get_info(device)
    rows, graph_bytes = min(max(max_num_seqs, LEAST_ROWS), MOST_ROWS), int(GRAPH_MEMORY_SHARE * memory)
    reason = triton_problem(spec, weights.embedding.dtype, device)
    if reason:
        _LOG.warning("no Triton kernels: %s", reason)
        return DeviceBackend(CudaCapturer, max_rows=rows, max_graph_bytes=graph_bytes, reason=reason)
    from core.runtime.gpu.triton_backend import TritonBackend

    return TritonBackend(CudaCapturer, max_rows=rows, max_graph_bytes=graph_bytes)
