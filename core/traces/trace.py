"""A workload as columns: when each request arrives, how long its prompt and its output are, what it shares.

    scaled time = time / rate factor; scaled length = max(1, round(length * factor))

Immutable; every change gives a new trace. About 20 bytes a row, plus 8 for each shared-prefix block id.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from core.errors import ConfigError, TraceError
from core.lengths import MAX_VALUES, LengthSpec
from core.traces.report import TraceReport

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TraceStats:
    """Figures of a trace; arrivals None where the trace has no times.

    Attributes:
        prompt, output: 50th, 90th, 99th percentile, tokens (linear interpolation).
        rate_per_s: (rows - 1) / span.
        cv: coefficient of variation of the gaps (1 is Poisson).
        idc10: variance / mean of the arrivals a 10-second bin (1 is Poisson).
        shared_share: share of prefix blocks that an unbounded cache would have served; None without block ids.
    """

    rows: int
    prompt: tuple[float, float, float]
    output: tuple[float, float, float]
    span_s: float | None
    rate_per_s: float | None
    cv: float | None
    idc10: float | None
    shared_share: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Rows in order of arrival.

    Attributes:
        arrival_s: seconds from the trace's origin, the first arrival of a file; None if there are no times.
        prompt_tokens, output_tokens: lengths, >= 1.
        tenants, tenant_index: names, and the name of each row by index.
        block_ids, block_starts: prefix blocks of row i are block_ids[block_starts[i]:block_starts[i + 1]]; None without.
        block_tokens: tokens of one such block (the last of a prompt may be partly filled).
        prompts: the texts, where the file has them.
    """

    report: TraceReport
    prompt_tokens: Ints
    output_tokens: Ints
    arrival_s: Floats | None = None
    tenants: tuple[str, ...] = ("default",)
    tenant_index: Ints | None = None
    block_ids: Ints | None = None
    block_starts: Ints | None = None
    block_tokens: int = 0
    prompts: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def tenant(self, row: int) -> str:
        """Name of a row's tenant."""
        return self.tenants[int(self.tenant_index[row])] if self.tenant_index is not None else self.tenants[0]

    def blocks(self, row: int) -> tuple[int, ...]:
        """Prefix block ids of a row; empty if the trace has none."""
        if self.block_ids is None or self.block_starts is None:
            return ()
        return tuple(self.block_ids[self.block_starts[row] : self.block_starts[row + 1]].tolist())

    def _need_times(self) -> Floats:
        if self.arrival_s is None:
            raise TraceError(f"{self.report.name} has no arrival times; combine its lengths with an arrival process first")
        return self.arrival_s

    def head(self, rows: int) -> Trace:
        """The first rows."""
        return self.rows(0, min(rows, len(self)))

    def between(self, start_s: float, stop_s: float) -> Trace:
        """Rows that arrive in [start, stop), counted from the first of them.

        Raises:
            TraceError: if there are none.
        """
        times = self._need_times()
        low, high = (int(np.searchsorted(times, at, side="left")) for at in (start_s, stop_s))
        if low >= high:
            raise TraceError(f"{self.report.name} has no arrival from {start_s} s to {stop_s} s; it ends at {times[-1]:.3f} s")
        return self.rows(low, high)

    def rows(self, low: int, high: int) -> Trace:
        """Rows low to high - 1, counted from the first of them."""
        if not 0 <= low < high <= len(self):
            raise TraceError(f"rows {low} to {high} of {self.report.name} do not exist; it has {len(self)}")
        cut = slice(low, high)
        starts, ids = self.block_starts, self.block_ids
        if starts is not None and ids is not None:
            ids = ids[starts[low] : starts[high]]
            starts = starts[low : high + 1] - starts[low]
        return replace(
            self,
            prompt_tokens=self.prompt_tokens[cut],
            output_tokens=self.output_tokens[cut],
            arrival_s=None if self.arrival_s is None else self.arrival_s[cut] - self.arrival_s[low],
            tenant_index=None if self.tenant_index is None else self.tenant_index[cut],
            block_ids=ids,
            block_starts=starts,
            prompts=None if self.prompts is None else self.prompts[cut],
        )

    def scaled(self, rate: float = 1.0, prompt: float = 1.0, output: float = 1.0) -> Trace:
        """Arrivals `rate` times as dense; lengths multiplied and rounded, never below 1; prefix blocks scale with prompts.

        A scaled prompt keeps its number of blocks, so what was shared stays shared.
        """
        for name, factor in (("rate", rate), ("prompt", prompt), ("output", output)):
            if not 1e-9 < factor < 1e9:
                raise ConfigError(f"the {name} factor is {factor!r}; give a number above 0")
        block = self.block_tokens
        prompts = _scaled(self.prompt_tokens, prompt)
        if self.block_starts is not None:
            block = max(1, round(block * prompt))
            count = np.diff(self.block_starts)
            last = np.maximum(1, np.rint((self.prompt_tokens - (count - 1) * self.block_tokens) * prompt).astype(np.int64))
            prompts = np.where(count > 0, (count - 1) * block + np.minimum(last, block), prompts)
        return replace(
            self,
            arrival_s=None if self.arrival_s is None else self.arrival_s / rate,
            prompt_tokens=prompts,
            output_tokens=_scaled(self.output_tokens, output),
            block_tokens=block,
            prompts=self.prompts if prompt == 1.0 else None,
        )

    def with_rate(self, rate_per_s: float) -> Trace:
        """Arrivals stretched or squeezed to a mean rate; gaps keep their pattern."""
        found = self.stats().rate_per_s
        if not found:
            raise TraceError(f"{self.report.name} has no rate: it needs at least two arrivals at different times")
        return self.scaled(rate=rate_per_s / found)

    def clipped(self, max_prompt: int, max_output: int) -> Trace:
        """Lengths cut to what an engine takes; prefix blocks beyond the cut are dropped."""
        ids, starts = self.block_ids, self.block_starts
        prompts = np.minimum(self.prompt_tokens, max_prompt)
        if ids is not None and starts is not None:
            keep = np.minimum(np.diff(starts), -(-prompts // self.block_tokens))
            mask = np.arange(len(ids)) - np.repeat(starts[:-1], np.diff(starts)) < np.repeat(keep, np.diff(starts))
            ids, starts = ids[mask], np.concatenate(([0], np.cumsum(keep)))
        return replace(
            self,
            prompt_tokens=prompts,
            output_tokens=np.minimum(self.output_tokens, max_output),
            block_ids=ids,
            block_starts=starts,
        )

    def spread(self) -> Trace:
        """Arrivals that share one time are spread evenly up to the next time (undoes coarse rounding)."""
        times = self._need_times()
        distinct, first, count = np.unique(times, return_index=True, return_counts=True)
        gaps = np.diff(distinct)
        step = np.append(gaps, np.median(gaps) if len(gaps) else 0.0)
        place = np.arange(len(times)) - np.repeat(first, count)
        return replace(self, arrival_s=times + place * np.repeat(step / count, count))

    def with_arrivals(self, times_s: Floats) -> Trace:
        """The same rows at other times (sorted; one for each row, or fewer to cut the trace)."""
        if len(times_s) > len(self) or not len(times_s):
            raise TraceError(f"{len(times_s)} arrival times do not fit the {len(self)} rows of {self.report.name}")
        times = np.sort(np.asarray(times_s, dtype=np.float64))
        return replace(self.head(len(times)), arrival_s=times - times[0])

    def with_poisson_arrivals(self, rate_per_s: float, seed: int = 0) -> Trace:
        """The same rows at times drawn by a Poisson process, for a file of lengths alone; same seed, same times."""
        if not rate_per_s > 0:
            raise TraceError(f"the rate is {rate_per_s!r} requests/s; give a number above 0")
        gaps = np.random.default_rng(seed).exponential(1.0 / rate_per_s, len(self))
        return self.with_arrivals(np.cumsum(gaps))

    def length_specs(self) -> tuple[LengthSpec, LengthSpec]:
        """Prompt and output lengths as empirical distributions for a synthetic load."""
        step = -(-len(self) // MAX_VALUES)
        return (
            LengthSpec.empirical(self.prompt_tokens[::step].tolist()),
            LengthSpec.empirical(self.output_tokens[::step].tolist()),
        )

    def stats(self) -> TraceStats:
        """Figures of the lengths and of the arrivals."""
        span = rate = cv = idc10 = None
        if self.arrival_s is not None and len(self) > 1:
            span = float(self.arrival_s[-1] - self.arrival_s[0])
            gaps = np.diff(self.arrival_s)
            rate = (len(self) - 1) / span if span else None
            cv = float(gaps.std() / gaps.mean()) if span else None
            bins = np.bincount((self.arrival_s / 10).astype(np.int64)) if span < 1e8 else None
            idc10 = float(bins.var() / bins.mean()) if bins is not None and len(bins) > 1 else None
        shared = None
        if self.block_ids is not None and len(self.block_ids):
            shared = 1.0 - len(np.unique(self.block_ids)) / len(self.block_ids)
        return TraceStats(
            len(self), _percentiles(self.prompt_tokens), _percentiles(self.output_tokens), span, rate, cv, idc10, shared
        )


def _scaled(lengths: Ints, factor: float) -> Ints:
    if factor == 1.0:
        return lengths
    scaled: Ints = np.maximum(1, np.rint(lengths * factor)).astype(np.int64)
    return scaled


def _percentiles(values: Ints) -> tuple[float, float, float]:
    p50, p90, p99 = (float(v) for v in np.percentile(values, (50, 90, 99)))
    return p50, p90, p99


def merge(traces: list[Trace]) -> Trace:
    """Several tenants' traces as one, in order of time; block ids and texts are dropped, tenants kept apart by name.

    Raises:
        TraceError: if one has no arrival times or the list is empty.
    """
    if not traces:
        raise TraceError("there is no trace to merge")
    times = np.concatenate([t._need_times() for t in traces])
    order = np.argsort(times, kind="stable")
    tenants: list[str] = []
    index = []
    for t in traces:
        at = t.tenant_index if t.tenant_index is not None else np.zeros(len(t), np.int64)
        index.append(at + len(tenants))
        tenants += t.tenants
    return Trace(
        report=replace(
            traces[0].report,
            name=" + ".join(t.report.name for t in traces),
            rows_used=len(times),
            rows_skipped=sum(t.report.rows_skipped for t in traces),
            skipped=(),
            notes=tuple(dict.fromkeys(n for t in traces for n in t.report.notes)),
        ),
        prompt_tokens=np.concatenate([t.prompt_tokens for t in traces])[order],
        output_tokens=np.concatenate([t.output_tokens for t in traces])[order],
        arrival_s=times[order],
        tenants=tuple(tenants),
        tenant_index=np.concatenate(index)[order],
    )
