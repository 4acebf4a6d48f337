"""A run as a trace for Perfetto or chrome://tracing: the Trace Event Format in JSON.

    process "engine"    track "steps"     step 12 [schedule|prepare|forward     |sample|update]
                        counters          KV blocks, batch, tokens in the step, intensity
    process "requests"  track a request   [queue][prefill][decode    ][preempted][prefill][decode]   a mark at every token

Times are microseconds from the first event of the run, in eighths: binary fractions and whole nanoseconds, so that the end
of a slice and the beginning of the next are one number to every reader. Slices of a track nest and never overlap.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from core.atomic_file import atomic_file
from core.bundle import RunBundle
from core.charts.story import phases
from core.engine_commands import Cancel, Submit
from core.records import StepRecord
from core.request import StoryEvent
from core.run_entries import CommandEntry, StepEntry
from core.story import Story

ENGINE, REQUESTS = 1, 2
STEPS_TRACK = 1
MAX_TOKEN_MARKS = 500_000
PARTS = ("schedule", "prepare", "forward", "sample", "transfer", "update")

Event = dict[str, Any]


def stories_of(bundle: RunBundle) -> list[Story]:
    """The life of every request of a run, in order of submission, from what was decided and answered."""
    events: dict[str, list[StoryEvent]] = {}
    tokens: dict[str, list[float]] = {}
    facts: dict[str, Submit] = {}

    def tell(request_id: str, time_s: float, step: int, kind: str) -> None:
        if request_id in events:
            events[request_id].append(StoryEvent(time_s, step, kind, "", 0))

    for entry in bundle.record.entries:
        if isinstance(entry, CommandEntry):
            command = entry.command
            if isinstance(command, Submit):
                arrival_s = entry.time_s if command.arrival_time_s is None else command.arrival_time_s
                facts[command.request_id] = command
                events[command.request_id] = [StoryEvent(arrival_s, entry.step, "submitted", "", 0)]
                tokens[command.request_id] = []
            elif isinstance(command, Cancel):
                tell(command.request_id, entry.time_s, entry.step, "cancelled")
        elif isinstance(entry, StepEntry):
            _tell_step(entry, tell, tokens)
    ended = {r.request_id: r for r in bundle.requests}
    for request_id, r in ended.items():
        if r.finish_reason != "cancelled":
            tell(request_id, r.finished_s, -1, "finished")
    return [
        Story(
            request_id,
            ended[request_id].finish_reason if request_id in ended else "live",
            len(facts[request_id].prompt_token_ids),
            len(tokens[request_id]),
            tuple(told),
            tuple(tokens[request_id]),
            facts[request_id].tenant,
        )
        for request_id, told in events.items()
    ]


def _tell_step(entry: StepEntry, tell: Any, tokens: dict[str, list[float]]) -> None:
    output = entry.output
    for lost in output.preemptions:
        tell(lost.victim, entry.start_s, output.step, "preempted")
    for request_id in output.admitted:
        tell(request_id, entry.start_s, output.step, "admitted")
    for request_id in output.resumed:
        tell(request_id, entry.start_s, output.step, "resumed")
    for request_id, _ in entry.result.sampled:
        if request_id in tokens:
            if not tokens[request_id]:
                tell(request_id, entry.answered_s, output.step, "first_token")
            tokens[request_id].append(entry.answered_s)


def _us(seconds: float) -> float:
    """Microseconds, in eighths: begin + duration has no rounding error, nor has a conversion to nanoseconds."""
    return round(seconds * 8e6) / 8


def _slice(pid: int, tid: int, name: str, start_s: float, end_s: float, **args: Any) -> Event:
    start = _us(start_s)
    event: Event = {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": start, "dur": max(_us(end_s) - start, 0.0)}
    return event | ({"args": args} if args else {})


def _parts(slices: Iterator[Event]) -> Iterator[Event]:
    """Without slices of no length: where one of them belongs in a stack is anybody's guess."""
    return (event for event in slices if event["dur"] > 0.0)


def _name(pid: int, tid: int, what: str, name: str, index: int) -> Iterator[Event]:
    yield {"ph": "M", "pid": pid, "tid": tid, "name": f"{what}_name", "args": {"name": name}}
    yield {"ph": "M", "pid": pid, "tid": tid, "name": f"{what}_sort_index", "args": {"sort_index": index}}


def step_events(steps: Sequence[StepRecord], origin_s: float) -> Iterator[Event]:
    """The steps with their parts, and the counters."""
    end_s = 0.0
    for r in steps:
        start_s = max(r.start_s - origin_s, end_s)  # a step that begins as the last one ends may seem a hair earlier
        end_s = start_s + r.duration_s
        yield _slice(
            ENGINE, STEPS_TRACK, f"step {r.step}", start_s, end_s,
            bound_by=r.bound_by, prefill_tokens=r.prefill_tokens, decode_tokens=r.decode_tokens, admitted=r.admitted,
            finished=r.finished, preempted=r.preempted, kind=r.kind,
        )  # fmt: skip
        ends = accumulate((getattr(r, f"{part}_s") for part in PARTS), initial=start_s)
        spans = pairwise(min(at, end_s) for at in ends)
        yield from _parts(_slice(ENGINE, STEPS_TRACK, part, *span) for part, span in zip(PARTS, spans, strict=True))
        ts = _us(start_s)
        counters: dict[str, dict[str, float]] = {
            "KV blocks": {"live": r.blocks_live, "cached": r.blocks_cached, "free": r.blocks_free},
            "batch": {"running": r.num_running, "waiting": r.num_waiting, "preempted": r.num_preempted},
            "tokens in the step": {"prefill": r.prefill_tokens, "decode": r.decode_tokens, "padding": r.padded_tokens},
            "intensity (FLOP/B)": {"intensity": round(r.intensity, 4)},
        }
        for name, values in counters.items():
            yield {"ph": "C", "pid": ENGINE, "name": name, "ts": ts, "args": values}


def request_events(stories: Sequence[Story], origin_s: float, now_s: float) -> Iterator[Event]:
    """One track a request: its life, its phases inside, a mark at every token."""
    marks = 0
    for tid, story in enumerate(stories, 1):
        yield from _name(REQUESTS, tid, "thread", story.request_id, tid)
        spans = phases(story, now_s)
        if not spans:
            continue
        first, last = spans[0][1] - origin_s, spans[-1][2] - origin_s
        yield _slice(
            REQUESTS, tid, story.request_id, first, last,
            tenant=story.tenant, prompt_tokens=story.prompt_tokens, output_tokens=story.output_tokens, end=story.status,
        )  # fmt: skip
        yield from _parts(_slice(REQUESTS, tid, phase, a - origin_s, b - origin_s) for phase, a, b in spans)
        for time_s in story.token_times_s:
            if marks < MAX_TOKEN_MARKS:
                marks += 1
                yield {"ph": "i", "s": "t", "pid": REQUESTS, "tid": tid, "name": "token", "ts": _us(time_s - origin_s)}


def trace(bundle: RunBundle) -> dict[str, Any]:
    """The whole trace as plain data."""
    stories = stories_of(bundle)
    starts = [r.start_s for r in bundle.steps[:1]] + [s.events[0].time_s for s in stories if s.events]
    origin_s = min(starts, default=0.0)
    ends = [r.start_s + r.duration_s for r in bundle.steps[-1:]] + [r.finished_s for r in bundle.requests]
    now_s = max(ends, default=origin_s)
    about, info = bundle.manifest, bundle.record.header.info
    events: list[Event] = [
        *_name(ENGINE, 0, "process", f"engine: {info.model_label} on {info.device}, {about.kind}", 0),
        *_name(REQUESTS, 0, "process", "requests", 1),
        *_name(ENGINE, STEPS_TRACK, "thread", "steps", 0),
        *step_events(bundle.steps, origin_s),
        *request_events(stories, origin_s, now_s),
    ]
    other = {
        "name": about.name, "kind": about.kind, "load": about.load, "seed": about.seed, "created": about.created,
        "model": info.model_label, "dtype": info.dtype, "device": info.device, "batchscope": about.program_version,
    }  # fmt: skip
    return {"displayTimeUnit": "ms", "otherData": other, "traceEvents": events}


def trace_bytes(bundle: RunBundle) -> bytes:
    """The trace as a JSON file for ui.perfetto.dev."""
    return json.dumps(trace(bundle), separators=(",", ":"), allow_nan=False).encode()


def write_trace(bundle: RunBundle, target: Path) -> Path:
    """Write the trace whole or not at all (ExportError); returns its path."""
    content = trace_bytes(bundle)
    with atomic_file(target) as file:
        file.write(content)
    return target
