"""The one module that needs a CUDA device to run: captures work as a CUDA graph.

All graphs share one memory pool: what they need only while they run lies in the same place, since never two run at
once; what outlives a graph (inputs, logits, keys and values) is allocated outside.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from core.runtime.gpu.graphs import Graph


class CudaCapturer:
    """Implements `Capturer` on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self.held_bytes = 0

    def capture(self, run: Callable[[], None]) -> Graph:
        """See `Capturer`. Other threads may use the device meanwhile."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        before, _ = torch.cuda.mem_get_info(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            run()
        torch.cuda.synchronize(self._device)
        after, _ = torch.cuda.mem_get_info(self._device)
        self.held_bytes += max(before - after, 0)
        return graph
