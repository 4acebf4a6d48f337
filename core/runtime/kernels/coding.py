"""Panels of bfloat16 in 12 bits a weight, without loss: the exponents of trained weights say little, so they are coded.

    panel    [codebook: 16 exponents][patches: count, then places and bits][a unit for each 8 k]
    unit     [64 bytes: two 4-bit codes each][64 bytes: sign and mantissa][64 bytes: sign and mantissa]     of 128 weights

A bfloat16 weight is a sign, 8 bits of exponent and 7 of mantissa. Sign and mantissa are kept as a byte; the exponent
becomes its number among the 16 most frequent ones of its panel, zeros included. The few weights whose exponent is not
among them are kept whole as patches (of SmolLM2-135M 937 in 134 million). Unpacking gives the panel of `pack` bit by
bit, so products read three quarters of the bytes and their results are those of the plain panels.

The codes of lines 2j and 2j + 1 of a panel lie as x86's unpacking of bytes wants them: the eight weights of a 16-byte
lane of line 2j stand before the eight of line 2j + 1. That exponents compress without loss is the observation of DFloat11
(arXiv:2504.11651); its code has variable length, this one a fixed one, which a vector unit takes apart in a few operations.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from core.runtime.kernels.compiler import jit
from core.runtime.kernels.pack import PackedWeight, huge_empty
from core.runtime.kernels.tiles import LINE_BYTES, PANEL

CODEBOOK = 16
COUNT_AT, PATCHES_AT, PATCH_BYTES = 16, 24, 8
UNIT_K, UNIT_BYTES = 8, 3 * LINE_BYTES
PLACE_SHIFT, UNIT_SHIFT = 16, 16 + 7
"""A patch is place << 16 | bits, and a unit has 2^7 places."""

Bits = npt.NDArray[np.uint16]
Bytes = npt.NDArray[np.uint8]


def header_bytes(k: int) -> int:
    """Bytes of a panel before its units: room for 13 patches, and for one more each 128 k."""
    return LINE_BYTES * (2 + k // 1024)


def coded_bytes(k: int) -> int:
    """Bytes of a coded panel of `k` inputs, k a multiple of UNIT_K."""
    return header_bytes(k) + k // UNIT_K * UNIT_BYTES


def _encode(panels: Bits, coded: Bytes, header: int) -> bool:
    """Code all panels [P, words]; False if one has more patches than its header holds."""
    room = (header - PATCHES_AT) // PATCH_BYTES
    counts, codes = np.empty(256, np.int64), np.empty(256, np.uint8)
    for p in range(panels.shape[0]):
        words, out = panels[p], coded[p]
        counts[:] = 0
        for i in range(len(words)):
            counts[(words[i] >> 7) & 255] += 1
        codes[:] = 255
        for code in range(CODEBOOK):
            most = 0
            for exponent in range(256):
                if counts[exponent] > counts[most]:
                    most = exponent
            if counts[most] > 0:
                codes[most] = code
                counts[most] = 0
            out[code] = most
        out[CODEBOOK:header] = 0
        patches = 0
        for i in range(len(words)):
            bits = np.int64(words[i])
            code = codes[(bits >> 7) & 255]
            if code == 255:
                if patches == room:
                    return False
                entry = np.int64(i) << 16 | bits
                for byte in range(PATCH_BYTES):
                    out[PATCHES_AT + patches * PATCH_BYTES + byte] = (entry >> (8 * byte)) & 255
                patches += 1
                code = 0
            line, place = i // 32, i % 32
            unit = header + line // 4 * UNIT_BYTES
            byte = place // 8 * 16 + line % 2 * 8 + place % 8
            out[unit + (1 + line % 4 // 2) * LINE_BYTES + byte] = (bits & 127) << 1 | bits >> 15
            if line % 4 < 2:
                out[unit + byte] = code
            else:
                out[unit + byte] |= code << 4
        out[COUNT_AT] = patches & 255
        out[COUNT_AT + 1] = patches >> 8
    return True


@cache
def _compiled_encode() -> Any:
    return jit(_encode)


def encode(packed: PackedWeight) -> PackedWeight | None:
    """Code the panels of a bfloat16 weight, or return None where their exponents do not allow it.

    Raises:
        ValueError: if the panels are not of bfloat16.
    """
    if packed.data.dtype != torch.bfloat16:
        raise ValueError(f"only panels of bfloat16 are coded, not of {packed.data.dtype}")
    words = packed.data.view(torch.uint16).view(packed.panels, -1).numpy()
    size = coded_bytes(packed.k)
    data = huge_empty((packed.panels, size), torch.uint8)
    if not _compiled_encode()(words, data.numpy(), header_bytes(packed.k)):
        return None
    return PackedWeight(data, packed.panels, size, packed.k)


def decode(coded: PackedWeight) -> torch.Tensor:
    """The panels as `pack` makes them, bfloat16 [panels, k / 2, 16, 2]; the reference of the kernel `unpack`."""
    data = coded.data.numpy()
    header = header_bytes(coded.k)
    units = data[:, header:].reshape(coded.panels, -1, 3, 4, 2, 8)  # unit, part, 16-byte lane, line of a pair, place
    codes = np.stack((units[:, :, 0] & 15, units[:, :, 0] >> 4), axis=2)  # panel, unit, pair of lines, lane, line, place
    exponents = np.take_along_axis(data[:, :CODEBOOK], codes.reshape(coded.panels, -1).astype(np.int64), 1).reshape(codes.shape)
    rest = units[:, :, 1:].astype(np.uint16)
    bits = (rest & 1) << 15 | exponents.astype(np.uint16) << 7 | rest >> 1
    words = np.ascontiguousarray(bits.swapaxes(3, 4)).reshape(coded.panels, -1)
    for panel, head in zip(words, data, strict=True):
        count = int(head[COUNT_AT]) + 256 * int(head[COUNT_AT + 1])
        for entry in head[PATCHES_AT : PATCHES_AT + count * PATCH_BYTES].view(np.int64):
            panel[entry >> 16] = entry & 0xFFFF
    return torch.from_numpy(words).view(torch.bfloat16).view(coded.panels, coded.k // 2, PANEL, 2)
