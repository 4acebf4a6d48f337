"""One uniform number for each (seed, output position), and no state: companions and pauses cannot disturb it.

    u(seed, position) = Philox4x32-10(counter = position, key = seed) -> the top 53 bits, in [0, 1)

Philox is counter based (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

UInt64 = npt.NDArray[np.uint64]

_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ROUNDS = 10


def philox4x32(counter: tuple[UInt64, UInt64, UInt64, UInt64], key: tuple[UInt64, UInt64]) -> tuple[UInt64, ...]:
    """Return the four 32-bit words of each counter under its key; every array is [n] and holds 32-bit values."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product_0, product_1 = _MULTIPLIER_0 * c0, _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            (product_1 >> _HALF) ^ c1 ^ k0,
            product_1 & _LOW,
            (product_0 >> _HALF) ^ c3 ^ k1,
            product_0 & _LOW,
        )
        k0, k1 = (k0 + np.uint64(_WEYL_0)) & _LOW, (k1 + np.uint64(_WEYL_1)) & _LOW
    return c0, c1, c2, c3


def uniforms(seeds: UInt64, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return one number in [0, 1) for each pair of seed and output position, [n] float64."""
    place = positions.astype(np.uint64)
    zero = np.zeros_like(place)
    first, second, _, _ = philox4x32((place & _LOW, place >> _HALF, zero, zero), (seeds & _LOW, seeds >> _HALF))
    return ((first >> np.uint64(5)).astype(np.float64) * 2.0**26 + (second >> np.uint64(6)).astype(np.float64)) / 2.0**53
