"""Drawing on the host, row by row in numpy; the definition is that of `sampler`.

    weight_t = exp((l_t - max l) / T)                     one vector pass, no sort
    no set       sums of blocks of 256 weights, a running sum over the blocks, then over one block
    top_k        the k-th largest of the block maxima bounds the k-th largest logit from below; only tokens above it are sorted
    top_p        lower a bound on the weight until the tokens above it hold the mass; only these are sorted

A row's arithmetic never sees another row. A pass over 49,152 logits stays in the core's own cache.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from core.request import SamplingParams

Float32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_BLOCK = 256
_STEP = np.float32(1 / 8)  # how far the bound on the weight is lowered at a time
_SMALLEST = np.float32(1e-30)


def draw_row(logits: Float32, best: np.float32, p: SamplingParams, u: float, scratch: Float32) -> int:
    """Return a token id.

    Args:
        logits: [vocab_size] float32.
        best: their maximum, finite.
        p: settings, not greedy.
        u: the row's random number, in [0, 1).
        scratch: [vocab_size], overwritten; a fresh array of this size would cost as much as the arithmetic.
    """
    temperature = np.float32(p.temperature)
    if 0 < p.top_k < len(logits):
        ids = _in_order(logits, _largest(logits, p.top_k))
        kept = np.exp((logits[ids] - best) / temperature).astype(np.float64)
        return int(ids[_invert(kept[: _nucleus(kept, p.top_p, float(kept.sum()))], u)])
    weights = np.subtract(logits, best, out=scratch)
    np.divide(weights, temperature, out=weights)
    np.exp(weights, out=weights)
    sums = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK)).astype(np.float64)
    if p.top_p >= 1.0:
        return _from_blocks(weights, sums, u)
    total = float(sums.sum())
    ids = _in_order(logits, _holding(weights, p.top_p * total))
    kept = weights[ids].astype(np.float64)
    return int(ids[_invert(kept[: _nucleus(kept, p.top_p, total)], u)])


def _from_blocks(weights: Float32, sums: npt.NDArray[np.float64], u: float) -> int:
    """Invert the running sum of all weights, first over blocks, then inside one."""
    block = _invert(sums, u)
    inside = weights[block * _BLOCK : (block + 1) * _BLOCK].astype(np.float64)
    running = float(sums[:block].sum()) + np.cumsum(inside)
    place = int(np.searchsorted(running, u * float(sums.sum()), side="right"))
    return block * _BLOCK + min(place, int(np.flatnonzero(inside)[-1]))


def _invert(weights: npt.NDArray[np.float64], u: float) -> int:
    """Return the first place at which the running sum exceeds u * total."""
    running = np.cumsum(weights)
    place = int(np.searchsorted(running, u * running[-1], side="right"))
    return min(place, int(np.searchsorted(running, running[-1])))  # u * total may round up to total


def _nucleus(weights: npt.NDArray[np.float64], top_p: float, total: float) -> int:
    """Return how many of the falling `weights` are needed for the share top_p of `total`; at least 1."""
    if top_p >= 1.0:
        return len(weights)
    before = np.cumsum(weights) - weights
    return max(int(np.searchsorted(before, top_p * total, side="left")), 1)


def _largest(logits: Float32, k: int) -> Ids:
    """Return the ids of the k largest logits, ties at the edge included, ascending ids."""
    maxima = np.maximum.reduceat(logits, np.arange(0, len(logits), _BLOCK))
    if k <= len(maxima):
        bound = np.partition(maxima, len(maxima) - k)[len(maxima) - k]
        ids = np.flatnonzero(logits >= bound)
    else:
        ids = np.arange(len(logits))
    values = logits[ids]
    edge = np.partition(values, len(values) - k)[len(values) - k]
    largest: Ids = ids[values >= edge]
    return largest


def _holding(weights: Float32, mass: float) -> Ids:
    """Return the ids of all tokens above a weight, low enough that together they hold more than `mass`."""
    bound = _STEP
    while bound > _SMALLEST:
        ids = np.flatnonzero(weights >= bound)
        if float(weights[ids].sum(dtype=np.float64)) > mass:
            return ids
        bound *= _STEP
    return np.flatnonzero(weights > 0)


def _in_order(logits: Float32, ids: Ids) -> Ids:
    """Sort ascending ids by falling logit; equal logits keep their ids' order."""
    return ids[np.argsort(-logits[ids], kind="stable")]
