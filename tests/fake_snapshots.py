"""Realistic snapshots without an engine: a small seeded play of requests over a pool, at the contract types.

`FakeRun` keeps the laws that pages rely on (live + cached + free = total, planned tokens <= budget, running <=
seats), so a page that adds up numbers finds them consistent. It decides nothing that matters: it is scenery.
"""

from __future__ import annotations

import array
import random
from dataclasses import dataclass, field, replace

from core.config import CacheConfig, EngineConfig, SchedulerConfig
from core.executor import ExecutorInfo
from core.model_spec import SMOLLM2_135M
from core.outputs import BoundBy, PassedOver, Preemption
from core.records import RequestRecord, StepRecord
from core.request import StoryEvent
from core.snapshot import (
    BlockMapView,
    EngineSnapshot,
    Kpis,
    Percentiles,
    PoolCounts,
    RequestView,
    RooflineCeilings,
    TenantView,
    Totals,
)
from core.story import Story

TENANTS = ("default", "search", "chat", "batch")
KV_BYTES_PER_TOKEN = 2 * 30 * 3 * 64 * 2
WEIGHT_BYTES = 269_060_352
INFO = ExecutorInfo(
    spec=SMOLLM2_135M,
    model_label="SmolLM2-135M-Instruct",
    device="CPU, 2 threads",
    dtype="bfloat16",
    weight_bytes=WEIGHT_BYTES,
    weight_bytes_read=WEIGHT_BYTES,
    kv_bytes_per_token=KV_BYTES_PER_TOKEN,
    block_size=16,
    num_blocks=1024,
    num_threads=2,
    kernels="numba paged attention",
)
CEILINGS = RooflineCeilings(
    device="CPU, 2 threads",
    peak_flops=98e9,
    dram_bytes_per_s=17.5e9,
    cache_bytes_per_s=46e9,
    working_set_bytes=WEIGHT_BYTES,
    dtype="bfloat16",
    cache_bytes=32 * 2**20,
)


@dataclass
class _Row:
    request_id: str
    tenant: str
    hue: int
    arrival_s: float
    prompt: int
    max_tokens: int
    stop_at: int
    computed: int = 0
    output: int = 0
    scheduled: int = 0
    is_prefill: bool = False
    preemptions: int = 0
    blocks: list[int] = field(default_factory=list)
    status: str = "waiting"
    first_token_s: float | None = None
    admitted_s: float | None = None
    finished_s: float | None = None
    preempted_at_s: float | None = None
    spans: list[tuple[float, float]] = field(default_factory=list)
    finish_reason: str = ""

    def view(self, now_s: float, why: str = "") -> RequestView:
        return RequestView(
            request_id=self.request_id,
            status=self.status,
            tenant=self.tenant,
            priority=0,
            hue=self.hue,
            arrival_s=self.arrival_s,
            age_s=(now_s if self.finished_s is None else self.finished_s) - self.arrival_s,
            prompt_tokens=self.prompt,
            output_tokens=self.output,
            max_tokens=self.max_tokens,
            computed_tokens=self.computed,
            cached_tokens=0,
            scheduled_tokens=self.scheduled,
            is_prefill=self.is_prefill,
            num_preemptions=self.preemptions,
            block_ids=tuple(self.blocks),
            finish_reason=self.finish_reason,
            why=why,
            text_tail=" and the blocks go back to the pool" if self.output else "",
            admitted_s=self.admitted_s,
            first_token_s=self.first_token_s,
            finished_s=self.finished_s,
            preempted_spans_s=(*self.spans, *([(self.preempted_at_s, now_s)] if self.preempted_at_s is not None else [])),
        )


class FakeRun:
    """Plays requests step by step; `snapshot()` and `records` look like those of the live engine.

    Args:
        load: requests kept in the system (running + waiting); each that ends is followed by another.
    """

    def __init__(
        self, *, load: int = 115, seats: int = 48, budget: int = 256, num_blocks: int = 1024, seed: int = 7, prompts: int = 320
    ) -> None:
        self.random = random.Random(seed)
        self.scheduler = SchedulerConfig(max_num_seqs=seats, max_num_batched_tokens=budget)
        self.cache = CacheConfig(num_blocks=num_blocks)
        self.load = load
        self.mean_prompt = prompts
        self.now_s = 0.0
        self.step = 0
        self.born = 0
        self.free = list(range(num_blocks))[::-1]
        self.cached: list[int] = []
        self.last_use = [0] * num_blocks
        self.running: list[_Row] = []
        self.waiting: list[_Row] = []
        self.ended: list[_Row] = []
        self.records: list[StepRecord] = []
        self.requests: list[RequestRecord] = []
        self.preemptions: list[Preemption] = []
        self.passed: tuple[PassedOver, ...] = ()
        self.totals = Totals()
        self.state = "running"

    def arrive(self) -> None:
        """Fill the queue up to the load."""
        while len(self.running) + len(self.waiting) < self.load:
            self.born += 1
            prompt = min(max(int(self.random.lognormvariate(0, 0.6) * self.mean_prompt), 8), 1600)
            limit = min(max(int(self.random.lognormvariate(0, 0.7) * 120), 4), 512)
            stop_at = max(1, int(limit * self.random.uniform(0.4, 1.0)))
            tenant = self.random.choice(TENANTS)
            hue = self.born * 137 % 360
            self.waiting.append(_Row(f"r{self.born:05d}", tenant, hue, self.now_s, prompt, limit, stop_at))
            self.totals = replace(self.totals, submitted=self.totals.submitted + 1)

    def need(self, row: _Row, tokens: int) -> int:
        return -(-(row.computed + tokens) // self.cache.block_size) - len(row.blocks)

    def take(self, row: _Row, blocks: int) -> bool:
        if blocks > len(self.free) + len(self.cached):
            return False
        for _ in range(blocks):
            block = self.free.pop() if self.free else self.cached.pop(0)
            row.blocks.append(block)
        return True

    def give_back(self, row: _Row, keep: bool) -> None:
        full = row.computed // self.cache.block_size if keep else 0
        self.cached.extend(row.blocks[:full])
        self.free.extend(reversed(row.blocks[full:]))
        row.blocks = []

    def preempt(self, beneficiary: _Row) -> bool:
        victim = self.running[-1]
        if victim is beneficiary:
            return False
        self.running.pop()
        self.preemptions.insert(
            0,
            Preemption(self.step, victim.request_id, beneficiary.request_id, len(victim.blocks), victim.computed, 0, "memory"),
        )
        self.give_back(victim, keep=True)
        victim.computed, victim.status, victim.preemptions = 0, "preempted", victim.preemptions + 1
        victim.scheduled, victim.preempted_at_s = 0, self.now_s
        self.waiting.insert(0, victim)
        self.totals = replace(self.totals, preemptions=self.totals.preemptions + 1)
        return True

    def advance(self, steps: int = 1) -> FakeRun:
        """Play some steps."""
        for _ in range(steps):
            self._step()
        return self

    def _plan(self, budget: int) -> tuple[int, BoundBy, int]:
        preempted = 0
        for row in list(self.running):
            if row not in self.running:
                continue
            tokens = min(max(row.prompt + row.output - row.computed, 1), budget)
            while not self.take(row, self.need(row, tokens)):
                preempted += 1
                if not self.preempt(row):
                    tokens = 0
                    break
            row.scheduled, row.is_prefill = tokens, row.prompt + row.output - row.computed > 1
            budget -= tokens
        admitted, bound, passed = 0, BoundBy.LOAD, []
        while self.waiting:
            row = self.waiting[0]
            tokens = min(row.prompt + row.output, budget)
            blocks = self.need(row, tokens)
            if preempted:
                bound = BoundBy.MEMORY
                passed.append(PassedOver(row.request_id, bound, f"a preemption in this step; {len(self.free)} blocks free"))
            elif len(self.running) >= self.scheduler.max_num_seqs:
                bound = BoundBy.SEATS
                passed.append(PassedOver(row.request_id, bound, f"all {self.scheduler.max_num_seqs} seats are taken"))
            elif budget < 1:
                bound = BoundBy.BUDGET
                spent = self.scheduler.max_num_batched_tokens
                passed.append(PassedOver(row.request_id, bound, f"needs 1 token, 0 of {spent} left"))
            elif not self.take(row, blocks):
                bound = BoundBy.MEMORY
                spare = len(self.free) + len(self.cached)
                passed.append(PassedOver(row.request_id, bound, f"needs {blocks} blocks, {spare} free"))
            else:
                self.waiting.pop(0)
                row.status, row.scheduled, row.is_prefill = "running", tokens, True
                row.admitted_s = self.now_s if row.admitted_s is None else row.admitted_s
                if row.preempted_at_s is not None:
                    row.spans.append((row.preempted_at_s, self.now_s))
                    row.preempted_at_s = None
                self.running.append(row)
                budget -= tokens
                admitted += 1
                continue
            break
        self.passed = tuple(passed)
        return admitted, bound, preempted

    def _step(self) -> None:
        self.step += 1
        if self.state == "running":
            self.arrive()
        live_before = self.now_s
        admitted, bound, preempted = self._plan(self.scheduler.max_num_batched_tokens)
        prefill = [r for r in self.running if r.is_prefill and r.scheduled]
        decode = [r for r in self.running if not r.is_prefill and r.scheduled]
        tokens = sum(r.scheduled for r in self.running)
        context = sum(r.computed for r in self.running)
        kv_read, kv_write = context * KV_BYTES_PER_TOKEN, tokens * KV_BYTES_PER_TOKEN
        flops = 2.0 * 134.5e6 * tokens + 4 * 30 * 9 * 64 * sum(r.scheduled * (r.computed + r.scheduled / 2) for r in self.running)
        forward = max(flops / (0.8 * CEILINGS.peak_flops), (WEIGHT_BYTES + kv_read + kv_write) / CEILINGS.dram_bytes_per_s)
        forward *= self.random.uniform(0.95, 1.2)
        host = 0.0018 * self.random.uniform(0.8, 1.4)
        duration = forward + host
        self.now_s = live_before + duration
        output = self._sample()
        finished = self._finish()
        live = sum(len(r.blocks) for r in self.running)
        self.records.append(
            StepRecord(
                step=self.step,
                start_s=live_before,
                duration_s=duration,
                schedule_s=0.25 * host,
                prepare_s=0.2 * host,
                forward_s=forward,
                sample_s=0.3 * host,
                transfer_s=0.05 * host,
                update_s=0.2 * host,
                num_running=len(self.running) + finished,
                num_waiting=sum(r.status == "waiting" for r in self.waiting),
                num_preempted=sum(r.status == "preempted" for r in self.waiting),
                prefill_requests=len(prefill),
                decode_requests=len(decode),
                prefill_tokens=sum(r.scheduled for r in prefill),
                decode_tokens=len(decode),
                padded_tokens=0,
                output_tokens=output,
                cached_tokens=0,
                budget_tokens=self.scheduler.max_num_batched_tokens,
                max_num_seqs=self.scheduler.max_num_seqs,
                admitted=admitted,
                finished=finished,
                preempted=preempted,
                blocks_live=live,
                blocks_cached=len(self.cached),
                blocks_free=len(self.free),
                kv_slots_used=sum(r.computed for r in self.running),
                flops=flops,
                useful_flops=flops,
                weight_bytes=float(WEIGHT_BYTES),
                kv_read_bytes=float(kv_read),
                kv_write_bytes=float(kv_write),
                useful_bytes=float(WEIGHT_BYTES + kv_read + kv_write),
                swap_bytes=0.0,
                bound_by=str(bound),
                full_batch=bound in (BoundBy.MEMORY, BoundBy.SEATS),
            )
        )

    def _sample(self) -> int:
        output = 0
        for row in self.running:
            for block in row.blocks:
                self.last_use[block] = self.step
            caught_up = row.computed + row.scheduled >= row.prompt + row.output
            row.computed += row.scheduled
            if row.scheduled and caught_up:
                row.output += 1
                output += 1
                row.first_token_s = row.first_token_s or self.now_s
        ran = sum(r.scheduled for r in self.running)
        self.totals = replace(
            self.totals, output_tokens=self.totals.output_tokens + output, prompt_tokens=self.totals.prompt_tokens + ran
        )
        return output

    def _finish(self) -> int:
        done = [r for r in self.running if r.output >= r.stop_at]
        for row in done:
            self.running.remove(row)
            self.give_back(row, keep=True)
            row.status, row.scheduled, row.finished_s = "finished", 0, self.now_s
            row.finish_reason = "length" if row.output >= row.max_tokens else "stop"
            self.ended.insert(0, row)
            self.requests.insert(0, self._record(row))
        del self.ended[50:], self.requests[200:]
        self.totals = replace(self.totals, finished=self.totals.finished + len(done))
        return len(done)

    def _record(self, row: _Row) -> RequestRecord:
        first = row.first_token_s or self.now_s
        e2e, ttft = self.now_s - row.arrival_s, first - row.arrival_s
        gaps = row.output - 1
        return RequestRecord(
            request_id=row.request_id,
            tenant=row.tenant,
            priority=0,
            arrival_s=row.arrival_s,
            finished_s=self.now_s,
            finish_reason=row.finish_reason,
            prompt_tokens=row.prompt,
            output_tokens=row.output,
            cached_tokens=0,
            num_preemptions=row.preemptions,
            queue_s=0.8 * ttft,
            ttft_s=ttft,
            tpot_s=(e2e - ttft) / gaps if gaps > 0 else None,
            e2e_s=e2e,
            max_itl_s=None if gaps < 1 else 2 * (e2e - ttft) / gaps,
            preempted_s=0.0,
            itl_s=tuple([(e2e - ttft) / gaps] * gaps) if gaps > 0 else (),
        )

    def story(self, request_id: str) -> Story | None:
        """A short story of a live or lately ended request, at the times of its row."""
        row = next((r for r in (*self.running, *self.waiting, *self.ended) if r.request_id == request_id), None)
        if row is None:
            return None
        events = [StoryEvent(row.arrival_s, 1, "submitted")]
        if row.admitted_s is not None:
            events.append(StoryEvent(row.admitted_s, 2, "admitted", f"{len(row.blocks)} blocks", blocks=tuple(row.blocks)))
        tokens: tuple[float, ...] = ()
        if row.first_token_s is not None:
            events.append(StoryEvent(row.first_token_s, 3, "first_token"))
            end_s = row.finished_s or self.now_s
            gap_s = (end_s - row.first_token_s) / max(row.output - 1, 1)
            tokens = tuple(row.first_token_s + k * gap_s for k in range(row.output))
        if row.finished_s is not None:
            events.append(StoryEvent(row.finished_s, 4, "finished", row.finish_reason))
        return Story(row.request_id, row.status, row.prompt, row.output, tuple(events), tokens, row.tenant)

    def pool(self) -> PoolCounts:
        live = sum(len(r.blocks) for r in self.running)
        return PoolCounts(self.cache.num_blocks, live, len(self.cached), self.cache.num_blocks - live - len(self.cached))

    def blocks(self) -> BlockMapView:
        total, size = self.cache.num_blocks, self.cache.block_size
        owner, fill, refs, flags = [0] * total, bytearray(total), bytearray(total), bytearray(total)
        for index, row in enumerate(self.running, start=1):
            for logical, block in enumerate(row.blocks):
                used = min(max(row.computed - logical * size, 0), size)
                owner[block], fill[block], refs[block], flags[block] = index, 255 * used // size, 1, 1
        for block in self.cached:
            fill[block], flags[block] = 255, 2
        ages = [min(self.step - used, 65535) for used in self.last_use]
        names = tuple(r.request_id for r in self.running)
        packed = (array.array("H", owner).tobytes(), bytes(fill), bytes(refs), bytes(flags), array.array("H", ages).tobytes())
        return BlockMapView(total, size, names, *packed)

    def kpis(self) -> Kpis:
        recent = self.records[-100:]
        span = sum(r.duration_s for r in recent) or 1.0
        queued = [r for r in recent if r.num_waiting]
        ttft = sorted(r.ttft_s for r in self.requests if r.ttft_s is not None)
        gaps = sorted(r.duration_s for r in recent)
        host = sum(r.host_s for r in recent)

        def percentiles(values: list[float]) -> Percentiles:
            if not values:
                return Percentiles()
            at = [values[min(int(q * len(values)), len(values) - 1)] for q in (0.5, 0.95, 0.99)]
            return Percentiles(len(values), *at)

        return Kpis(
            window_s=span,
            output_tokens_per_s=sum(r.output_tokens for r in recent) / span,
            total_tokens_per_s=sum(r.prefill_tokens + r.decode_tokens for r in recent) / span,
            requests_per_s=sum(r.finished for r in recent) / span,
            ttft=percentiles(ttft),
            itl=percentiles(gaps),
            e2e=percentiles(sorted(r.e2e_s for r in self.requests)),
            full_batch_share=sum(r.full_batch for r in queued) / len(queued) if queued else None,
            mean_batch=sum(r.num_running for r in recent) / max(len(recent), 1),
            mfu=sum(r.useful_flops for r in recent) / span / CEILINGS.peak_flops,
            mbu=sum(r.useful_bytes for r in recent) / span / CEILINGS.cache_bytes_per_s if CEILINGS.cache_bytes_per_s else None,
            mbu_ceiling="cache",
            host_share=host / span,
            host_us=1e6 * host / max(len(recent), 1),
            fragmentation=0.04,
        )

    def snapshot(self, *, wall_time_s: float = 0.0, **changes: object) -> EngineSnapshot:
        """The present picture; `changes` replace fields of it."""
        waiting = [r for r in self.waiting if r.status == "waiting"]
        preempted = [r for r in self.waiting if r.status == "preempted"]
        why = {p.request_id: p.detail for p in self.passed}
        shown = EngineSnapshot(
            step=self.step,
            time_s=self.now_s,
            wall_time_s=wall_time_s,
            state=self.state,
            config=EngineConfig(executor="worker", scheduler=self.scheduler, cache=self.cache),
            info=INFO,
            num_running=len(self.running),
            num_waiting=len(waiting),
            num_preempted=len(preempted),
            running=tuple(r.view(self.now_s) for r in self.running),
            waiting=tuple(r.view(self.now_s, why.get(r.request_id, "")) for r in waiting),
            preempted=tuple(r.view(self.now_s, why.get(r.request_id, "waits for memory to recompute")) for r in preempted),
            ended=tuple(r.view(self.now_s) for r in self.ended),
            blocks=self.blocks(),
            pool=self.pool(),
            kpis=self.kpis(),
            totals=self.totals,
            step_record=self.records[-1] if self.records else None,
            passed_over=self.passed,
            preemptions=tuple(self.preemptions[:50]),
            tenants=self.tenants(),
            jain_index=0.93,
            ceilings=CEILINGS,
            load_label="Poisson 4.0 requests/s",
            recent_requests=tuple(self.requests),
            revision=self.step,
        )
        return replace(shown, **changes)  # type: ignore[arg-type]

    def tenants(self) -> tuple[TenantView, ...]:
        views = []
        for name in TENANTS:
            rows = [r for r in self.running if r.tenant == name]
            waiting = sum(r.tenant == name for r in self.waiting)
            views.append(TenantView(name, 1.0, len(rows), waiting, sum(len(r.blocks) for r in rows), 1000, 0.25))
        return tuple(views)

    def history(self, since_step: int = -1) -> tuple[StepRecord, ...]:
        """Records of the steps after `since_step`."""
        return tuple(r for r in self.records if r.step > since_step)


def busy_run(steps: int = 420) -> FakeRun:
    """31 running, 84 waiting or preempted, 1,024 blocks nearly all live: the state of the pictures."""
    return FakeRun().advance(steps)


def heavy_run(steps: int = 400) -> FakeRun:
    """64 running, 200 waiting, 4,096 blocks: the size that the tick budget is stated for."""
    return FakeRun(load=264, seats=64, budget=512, num_blocks=4096, prompts=500).advance(steps)


def starting_snapshot() -> EngineSnapshot:
    """Before the model is there."""
    run = FakeRun()
    return replace(run.snapshot(), state="starting", info=None, ceilings=None, progress="reading weights, 40 %", step_record=None)


def idle_snapshot() -> EngineSnapshot:
    """Model loaded, nothing submitted."""
    return replace(FakeRun().snapshot(), state="idle", load_label="off")
