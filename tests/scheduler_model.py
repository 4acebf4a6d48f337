"""A brute-force model of allocator and queue: it sees only what crosses the walls and recounts everything from it.

Tables are rebuilt from SchedulerOutputs, the queue is a plain list sorted anew each time, and the tokens of a
request are computed from its prompt and seed alone. Nothing here knows how the scheduler works inside.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from core.config import AdmissionMoment, AdmissionPolicy, BatchPolicy, QueuePolicy, SchedulerConfig
from core.outputs import BoundBy, RequestEvent, SchedulerOutput
from core.request import Request, RequestStatus
from core.scheduler import Scheduler
from tests.scheduler_helpers import VOCAB, _history, _mix


def expected_tokens(request: Request, seed: int, count: int) -> list[int]:
    """The first `count` output tokens of a request, whatever happens around it."""
    history = context = 0
    tokens: list[int] = []
    for token in request.prompt_token_ids:
        history = _history(history, token)
        context = _history(context, history % VOCAB)
    length = len(request.prompt_token_ids)
    for number in range(count):
        tokens.append(_mix(context, seed, length + number) % VOCAB)
        history = _history(history, tokens[-1])
        context = _history(context, history % VOCAB)
    return tokens


def sort_key(request: Request, config: SchedulerConfig) -> tuple[float, ...] | None:
    """Where a queued request stands, from the definition of the policy; None where that changes with every step."""
    arrival = request.arrival_index
    resumed = request.num_preemptions > 0
    match config.queue_policy:
        case QueuePolicy.FCFS:
            return (arrival,)
        case QueuePolicy.PRIORITY:
            age = request.arrival_time_s / config.priority_ageing_s if config.priority_ageing_s else 0.0
            return (request.priority + age, arrival)
        case QueuePolicy.SHORTEST_PROMPT:
            return (not resumed, len(request.prompt_token_ids), arrival)
        case QueuePolicy.SHORTEST_JOB:
            output = config.predicted_output_tokens or request.sampling.max_tokens
            return (not resumed, len(request.prompt_token_ids) + output, arrival)
    return None


@dataclass
class SchedulerModel:
    """What an observer at the wall knows."""

    scheduler: Scheduler
    live: dict[str, Request] = field(default_factory=dict)
    ended: list[Request] = field(default_factory=list)
    tables: dict[str, list[int]] = field(default_factory=dict)
    seeds: dict[str, int] = field(default_factory=dict)
    silent_steps: int = 0
    excused: bool = False  # what a decision had planned was cancelled before its launch: it may run nothing

    def submitted(self, request: Request) -> None:
        assert request.request_id not in self.live, "an id is free only once its end has been told"
        self.live[request.request_id] = request

    def on_events(self, events: list[RequestEvent]) -> None:
        for event in events:
            if event.kind in ("finished", "cancelled"):
                self.ended.append(self.live.pop(event.request_id))
                assert self.ended[-1].finish_reason is event.finish_reason, "the end of another request of this id"

    def forget(self) -> None:
        """The executor was given a new pool."""
        self.tables.clear()

    def queue(self) -> list[Request]:
        """Live requests that hold no blocks."""
        return [r for r in self.live.values() if r.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)]

    def on_decision(self, out: SchedulerOutput, queued: list[Request], config: SchedulerConfig) -> None:
        """Check one decision; `queued` is `queue()` as it was before it."""
        for rid in out.released_ids:
            self.tables.pop(rid, None)
        for new in out.new_requests:
            assert new.request_id not in self.tables, f"{new.request_id} joins while it holds blocks"
            self.tables[new.request_id] = list(new.block_ids)
            self.seeds[new.request_id] = new.sampling_seed
        for rid, blocks in out.new_block_ids:
            assert len(blocks) > 0
            self.tables[rid] += blocks
        self._check_tables(out)
        self._check_shared(out)
        self._check_order(out, queued, config)
        self._check_progress(out, config)

    def _check_tables(self, out: SchedulerOutput) -> None:
        kv, size = self.scheduler.kv, self.scheduler.cache.block_size
        running = {r.request_id: r for r in self.scheduler.running}
        assert set(self.tables) == set(running)
        for rid, table in self.tables.items():
            assert kv.block_ids(rid) == tuple(table)
            assert all(0 <= b < kv.num_blocks for b in table)
            assert len(set(table)) == len(table)
        for rid, count, start in zip(out.request_ids, out.num_scheduled_tokens, out.num_computed_tokens, strict=True):
            assert start + count <= len(self.tables[rid]) * size
        counts = kv.counts()
        used = {b for table in self.tables.values() for b in table}
        assert counts.live + counts.cached + counts.free == counts.total
        assert counts.live == len(used) if not kv.held else counts.live >= len(used)

    def _check_shared(self, out: SchedulerOutput) -> None:
        """A block in two tables is full in both, at one place, of one tenant and salt, with one content before it."""
        size = self.scheduler.cache.block_size
        holders = Counter(b for table in self.tables.values() for b in table)
        seen: dict[int, tuple[object, ...]] = {}
        for rid, table in self.tables.items():
            request = self.live.get(rid)
            if request is None:
                continue
            tokens = [*request.prompt_token_ids, *request.output_token_ids]
            for at, block in enumerate(table):
                if holders[block] > 1:
                    assert request.use_prefix_cache
                    assert (at + 1) * size <= request.num_computed_tokens
                    content = (at, request.tenant, request.cache_salt, tuple(tokens[: (at + 1) * size]))
                    assert seen.setdefault(block, content) == content

    def _check_order(self, out: SchedulerOutput, queued: list[Request], config: SchedulerConfig) -> None:
        """Requests join in the order of the queue and skip at most `lookahead` others that have no quota."""
        quotas = any(t.max_seqs or t.max_blocks or t.max_tokens_per_s for t in config.tenants)
        between = config.admission_moment is AdmissionMoment.BETWEEN_LAUNCHES  # two passes over the queue
        if between or config.batch_policy is BatchPolicy.FIXED or sort_key_is_dynamic(config):
            return
        candidates = [r for r in queued if r.request_id in self.live and r.finish_reason is None]
        candidates.sort(key=lambda r: sort_key(r, config) or ())
        joined = [new.request_id for new in out.new_requests]
        places = [[r.request_id for r in candidates].index(rid) for rid in joined]
        assert places == sorted(places)
        if places and not quotas:
            assert places[-1] + 1 - len(places) <= config.lookahead

    def _check_progress(self, out: SchedulerOutput, config: SchedulerConfig) -> None:
        excused, self.excused = self.excused, False
        if out.request_ids or excused:
            self.silent_steps = 0
            return
        assert not self.tables, "requests run and none advances"
        if all(r.is_finished for r in self.live.values()):
            return
        self.silent_steps += 1
        assert out.passed_over, "nothing runs and nothing is said of those who wait"
        rated = any(t.max_tokens_per_s for t in config.tenants)
        assert rated, f"nothing runs, though no tenant has a rate: {out.passed_over}"
        assert all(p.bound_by is BoundBy.QUOTA for p in out.passed_over)

    def check_outputs(self) -> None:
        """Every request has the tokens it would have alone."""
        for request in [*self.live.values(), *self.ended]:
            if request.output_token_ids:
                seed = self.seeds[request.request_id]
                assert request.output_token_ids == expected_tokens(request, seed, request.num_output_tokens)


def sort_key_is_dynamic(config: SchedulerConfig) -> bool:
    """True for orders that depend on what is cached or served."""
    return config.queue_policy in (QueuePolicy.LONGEST_PREFIX, QueuePolicy.WEIGHTED_FAIR)


def reserves(config: SchedulerConfig) -> bool:
    """True where a request holds its worst case."""
    return config.admission_policy is AdmissionPolicy.RESERVE or config.batch_policy is BatchPolicy.FIXED
