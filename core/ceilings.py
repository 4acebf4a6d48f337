"""The ceilings of a machine over a run: the best that was ever measured, by a probe or by a step.

    probe  --> each ceiling is the best of all probes
    step   --> below: fine.  above: in doubt, out of MFU and MBU, until CONFIRMED_BY steps agree; then the ceiling is theirs

A probe beside other work measures low, and a step that did more than the ceiling allows proves that. One such step may be
a slip of a clock, so several must agree before the ceiling moves, and a rate far from the others stays in doubt. Each move
is a `CeilingChange`: figures of before were drawn under the ceiling that was known then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from core.records import StepRecord
from core.snapshot import CeilingChange, RooflineCeilings
from core.utilisation import least_step_memory_s

PROBE = "a later probe"
CONFIRMED_BY = 3
AGREEMENT = 1.25
"""A rate counts for at most this many times the lowest of the CONFIRMED_BY best ones."""

KEPT_CHANGES = 8
_KEPT_DOUBTS = 32
_SLACK = 1.0 + 1e-9
_FIELDS = {"compute": "peak_flops", "DRAM": "dram_bytes_per_s", "cache": "cache_bytes_per_s"}


def device_s(record: StepRecord) -> float:
    """Seconds that the device had for a step; all of it where the forward pass was not timed by itself."""
    return record.forward_s if record.forward_s > 0 else record.duration_s


def excess(ceilings: RooflineCeilings, record: StepRecord) -> tuple[float, float]:
    """How many times the (compute, memory) ceiling a step was; at most 1 below them, 0 where it took no time."""
    seconds = device_s(record)
    if seconds <= 0:
        return 0.0, 0.0
    return (
        max(record.flops, record.useful_flops) / (seconds * ceilings.peak_flops),
        least_step_memory_s(ceilings, _bytes(record)) / seconds,
    )


def is_below(ceilings: RooflineCeilings, record: StepRecord) -> bool:
    """True for a step that did no more than the ceilings allow."""
    return device_s(record) > 0 and max(excess(ceilings, record)) <= _SLACK


def best_of(known: RooflineCeilings, found: RooflineCeilings, step: int, time_s: float) -> RooflineCeilings:
    """Each ceiling the higher of the two; what `found` raises is noted."""
    result = known
    for name, field in _FIELDS.items():
        after = getattr(found, field)
        if after is not None and (getattr(result, field) or 0.0) < after:
            result = _raised(result, name, PROBE, step, time_s, after)
    return result


class CeilingWatch:
    """Holds the ceilings and compares each step with them; engine's thread only.

    Attributes:
        ceilings: None until something was measured.
        raised_by_steps: how often steps have moved a ceiling.
    """

    def __init__(self, ceilings: RooflineCeilings | None = None) -> None:
        self.ceilings = ceilings
        self.raised_by_steps = 0
        self._doubts: dict[str, list[tuple[float, StepRecord]]] = {"compute": [], "memory": []}

    def on_step(self, record: StepRecord) -> bool:
        """Compare a step with the ceilings, and raise them if it is the one that confirms; True if it lies below them then."""
        known = self.ceilings
        if known is None or is_below(known, record):
            return True
        if device_s(record) <= 0:
            return False
        for kind, ratio in zip(("compute", "memory"), excess(known, record), strict=True):
            if ratio > _SLACK:
                self._doubt(kind, record)
        return is_below(self.ceilings or known, record)

    def forget_doubts(self) -> None:
        """Steps so far no longer count as witnesses; the ceilings stay."""
        for seen in self._doubts.values():
            seen.clear()

    def _doubt(self, kind: str, record: StepRecord) -> None:
        assert self.ceilings is not None
        place = ("compute", "memory").index(kind)
        seen = [(excess(self.ceilings, r)[place], r) for _, r in self._doubts[kind]]
        seen = [(ratio, r) for ratio, r in [*seen, (excess(self.ceilings, record)[place], record)] if ratio > _SLACK]
        seen.sort(key=lambda entry: -entry[0])
        if len(seen) >= CONFIRMED_BY:
            limit = AGREEMENT * seen[CONFIRMED_BY - 1][0]
            best, witness = next(entry for entry in seen if entry[0] <= limit)
            self.ceilings = _above_step(self.ceilings, kind, best, witness, record)
            self.raised_by_steps += 1
            seen = [entry for entry in seen if entry[0] > best]
        self._doubts[kind] = seen[-_KEPT_DOUBTS:]


def raised_by_steps(ceilings: RooflineCeilings, records: Iterable[StepRecord]) -> tuple[RooflineCeilings, list[StepRecord]]:
    """The ceilings after all these steps, and the steps that lie below them (those in doubt are left out)."""
    steps = list(records)
    watch = CeilingWatch(ceilings)
    for record in steps:
        watch.on_step(record)
    known = watch.ceilings or ceilings
    return known, [r for r in steps if is_below(known, r)]


def _bytes(record: StepRecord) -> float:
    """Bytes that the forward pass moved; swapping is done before it."""
    return max(record.weight_bytes + record.kv_read_bytes + record.kv_write_bytes, record.useful_bytes)


def _above_step(known: RooflineCeilings, kind: str, ratio: float, witness: StepRecord, now: StepRecord) -> RooflineCeilings:
    """The ceilings raised until `witness`, which was `ratio` times the ceiling of its kind, lies just below them."""
    time_s = now.start_s + now.duration_s
    source = f"{now.kind} steps"
    if kind == "compute":
        return _raised(known, "compute", source, now.step, time_s, known.peak_flops * ratio)
    cache, dram, seconds = known.cache_bytes_per_s, known.dram_bytes_per_s, device_s(witness)
    if not cache or known.cache_bytes <= 0 or cache <= dram:
        return _raised(known, "DRAM", source, now.step, time_s, dram * ratio)
    moved = _bytes(witness)
    beyond_s = seconds - known.cache_bytes / cache
    if moved <= known.cache_bytes:
        return _raised(known, "cache", source, now.step, time_s, cache * ratio)
    needed = (moved - known.cache_bytes) / beyond_s if beyond_s > 0 else float("inf")
    if needed <= cache:
        return _raised(known, "DRAM", source, now.step, time_s, needed)
    # Faster than the cache alone: then all of it came at one rate, and neither figure was a ceiling.
    known = _raised(known, "cache", source, now.step, time_s, moved / seconds)
    return _raised(known, "DRAM", source, now.step, time_s, moved / seconds)


def _raised(known: RooflineCeilings, name: str, source: str, step: int, time_s: float, after: float) -> RooflineCeilings:
    """One ceiling set higher. Moves of one ceiling by one kind of witness in a row are one change, from first to last."""
    before = getattr(known, _FIELDS[name]) or 0.0
    changes = list(known.changes)
    if changes and (changes[-1].name, changes[-1].source) == (name, source):
        before = changes.pop().before
    changes.append(CeilingChange(name, source, step, time_s, before, after))
    values = {_FIELDS[name]: after, "changes": tuple(changes[-KEPT_CHANGES:])}
    if name == "DRAM" and known.cache_bytes_per_s is not None:
        values["cache_bytes_per_s"] = max(known.cache_bytes_per_s, after)
    return replace(known, **values)  # type: ignore[arg-type]
