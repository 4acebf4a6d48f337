"""From rows to prompts: token ids of exact length that share prefixes where the trace says so.

    token(block id, place) = mix(seed, block id, place) mod vocabulary

Equal block ids give equal tokens, so an engine's prefix cache finds what the traced service's cache would have found.
Rows without block ids get tokens of their own, from their row number.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from core.errors import TraceError
from core.traces.trace import Trace
from core.workload import Arrival

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_UNSHARED = 1 << 62  # keeps the keys of rows apart from those of blocks


def block_tokens(seed: int, key: int, count: int, vocab_size: int) -> npt.NDArray[np.int64]:
    """`count` token ids in [0, vocab_size) that depend on seed, key and place only (splitmix64)."""
    with np.errstate(over="ignore"):
        base = np.uint64((key * 0x9E3779B97F4A7C15 + seed * 0xD1B54A32D192ED03) & (2**64 - 1))
        z = base + _GOLDEN * np.arange(1, count + 1, dtype=np.uint64)
        z = (z ^ (z >> np.uint64(30))) * _MIX1
        z = (z ^ (z >> np.uint64(27))) * _MIX2
        z ^= z >> np.uint64(31)
    return (z % np.uint64(vocab_size)).astype(np.int64)


def prompt_ids(trace: Trace, row: int, vocab_size: int, seed: int = 0) -> tuple[int, ...]:
    """Token ids of one row's prompt, exactly as long as the row says."""
    length = int(trace.prompt_tokens[row])
    blocks = trace.blocks(row)
    if not blocks:
        return tuple(block_tokens(seed, _UNSHARED + row, length, vocab_size).tolist())
    size = trace.block_tokens
    parts = [
        block_tokens(seed, block, min(size, length - i * size), vocab_size) for i, block in enumerate(blocks) if i * size < length
    ]
    ids = np.concatenate(parts)
    if len(ids) < length:
        ids = np.concatenate((ids, block_tokens(seed, _UNSHARED + row, length - len(ids), vocab_size)))
    return tuple(ids.tolist())


def trace_arrivals(
    trace: Trace,
    *,
    vocab_size: int,
    seed: int = 0,
    start_s: float = 0.0,
    slo_ttft_s: float | None = None,
    slo_itl_s: float | None = None,
) -> Iterator[Arrival]:
    """The rows as arrivals of a load, one at a time, in order of time; prompts are made when they are asked for.

    Raises:
        TraceError: if the trace has no arrival times.
    """
    if trace.arrival_s is None:
        raise TraceError(f"{trace.report.name} has no arrival times; combine its lengths with an arrival process first")
    for row in range(len(trace)):
        yield Arrival(
            time_s=start_s + float(trace.arrival_s[row]),
            index=row,
            prompt_token_ids=prompt_ids(trace, row, vocab_size, seed),
            max_tokens=int(trace.output_tokens[row]),
            tenant=trace.tenant(row),
            slo_ttft_s=slo_ttft_s,
            slo_itl_s=slo_itl_s,
        )
