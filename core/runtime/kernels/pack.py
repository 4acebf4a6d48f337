"""Weights as panels: what the kernels read, made once at load.

    bfloat16  [N / 16][K / 2][16 columns][2]        float32  [N / 16][K][16 columns]
    int8      [N / 16] of (16 scales, float32; [K][16 columns]),   w ~ scale * q,   scale = max |w of the column| / 127

N and K are padded with zeros to multiples of 16, so a padded activation times a padded weight adds nothing.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from core.runtime.kernels.tiles import PANEL


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A projection in panels.

    Attributes:
        data: the panels, contiguous (keeps the memory alive).
        panels: number of panels of 16 output columns.
        panel_bytes: bytes from one panel to the next.
        k: padded number of inputs.
    """

    data: torch.Tensor
    panels: int
    panel_bytes: int
    k: int

    @property
    def address(self) -> int:
        return self.data.data_ptr()


def padded(n: int) -> int:
    """Round up to a multiple of 16."""
    return -(-n // PANEL) * PANEL


def huge_empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Uninitialised memory in huge pages where the system grants them: fewer address translations in a long read."""
    count = 1
    for size in shape:
        count *= size
    n_bytes = count * dtype.itemsize
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None or n_bytes < (1 << 21):
        return torch.empty(shape, dtype=dtype)
    region = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    region.madvise(advice)
    return torch.frombuffer(region, dtype=dtype, count=count).view(shape)


def pack(weight: torch.Tensor, *, int8: bool = False) -> PackedWeight:
    """Pack a [N, K] bfloat16 or float32 weight, with `int8` rounded to 8 bits and one scale an output."""
    if int8:
        return _pack_int8(weight)
    n, k = weight.shape
    pair = 2 if weight.dtype == torch.bfloat16 else 1
    wide = F.pad(weight, (0, padded(k) - k, 0, padded(n) - n))
    panels, k = wide.shape[0] // PANEL, wide.shape[1]
    data = huge_empty((panels, k // pair, PANEL, pair), weight.dtype)
    data.copy_(wide.view(panels, PANEL, k // pair, pair).transpose(1, 2))
    return PackedWeight(data, panels, PANEL * k * weight.element_size(), k)


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round each row of a [N, K] weight to int8; return (q [N, K], scale [N] float32), weight ~ q * scale."""
    wide = weight.float()
    scale = wide.abs().amax(dim=1) / 127.0
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    return (wide / safe[:, None]).round().clamp(-127, 127).to(torch.int8), scale


def _pack_int8(weight: torch.Tensor) -> PackedWeight:
    n, k = weight.shape
    q, scale = quantise(F.pad(weight, (0, padded(k) - k, 0, padded(n) - n)))
    panels, k = q.shape[0] // PANEL, q.shape[1]
    panel_bytes = 4 * PANEL + PANEL * k
    data = huge_empty((panels, panel_bytes), torch.int8)
    data[:, : 4 * PANEL] = scale.view(panels, PANEL).contiguous().view(torch.int8).view(panels, 4 * PANEL)
    data[:, 4 * PANEL :] = q.view(panels, PANEL, k).transpose(1, 2).reshape(panels, -1)
    return PackedWeight(data, panels, panel_bytes, k)


def pack_gate_up(weight: torch.Tensor, *, int8: bool = False) -> PackedWeight:
    """Pack [2 * I, K] (gate rows, then up rows) so that panels alternate: gate 0, up 0, gate 1, up 1, ..."""
    gate, up = weight.chunk(2)
    rows = padded(gate.shape[0])
    halves = [F.pad(part, (0, 0, 0, rows - part.shape[0])).view(-1, PANEL, part.shape[1]) for part in (gate, up)]
    return pack(torch.stack(halves, dim=1).reshape(2 * rows, -1), int8=int8)
