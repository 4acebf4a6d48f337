"""What a page may see: one immutable picture of the engine at a step boundary.

The engine's thread builds one after a step and publishes it by swapping one reference; a reader takes
no lock and can keep a picture as long as it likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from core.config import EngineConfig
from core.executor import ExecutorInfo
from core.outputs import PassedOver, Preemption
from core.records import RequestRecord, StepRecord
from core.tally import NOTHING, Tallies


@dataclass(frozen=True, slots=True)
class RequestView:
    """One request as a row.

    `hue` (0-359) follows from the id and is the same on every page. Times are on the engine's clock.
    `block_ids` is the block table, logical order.
    """

    request_id: str
    status: str
    tenant: str
    priority: int
    hue: int
    arrival_s: float
    age_s: float
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    computed_tokens: int
    cached_tokens: int
    scheduled_tokens: int  # in the latest step
    is_prefill: bool
    num_preemptions: int
    block_ids: tuple[int, ...] = ()
    finish_reason: str = ""
    why: str = ""  # why it waits, or the refusal's message
    text_tail: str = ""  # the last characters of the output, plain text
    source: str = "load"  # "load", "prompt", "api", "scenario"
    admitted_s: float | None = None  # first admission
    first_token_s: float | None = None
    finished_s: float | None = None
    preempted_spans_s: tuple[tuple[float, float], ...] = ()  # without blocks, (from, to); an open span ends at time_s


@dataclass(frozen=True, slots=True)
class BlockMapView:
    """All physical blocks as parallel byte strings, one entry a block; ready for a canvas.

    Attributes:
        owner: index into `owners` + 1 of the first request that holds the block; 0 if none. uint16 little endian.
        fill: share of the block's token slots in use, 0-255. uint8.
        refs: number of block tables that hold the block, capped at 255. uint8.
        flags: bit 0 live, bit 1 in the prefix index (reusable), bit 2 shared (refs > 1). uint8.
        last_use: steps since the block was last touched, capped at 65535. uint16 little endian.
    """

    num_blocks: int
    block_size: int
    owners: tuple[str, ...] = ()
    owner: bytes = b""
    fill: bytes = b""
    refs: bytes = b""
    flags: bytes = b""
    last_use: bytes = b""


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """live + cached + free = total, at every step."""

    total: int
    live: int
    cached: int
    free: int
    swap_total: int = 0
    swap_used: int = 0

    @property
    def usage(self) -> float:
        """Live share of the pool, 0 to 1."""
        return self.live / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class Percentiles:
    """p50, p95, p99 in seconds over `count` values; None where there is no value."""

    count: int = 0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Kpis:
    """Numbers of the status bar and the tiles; rates over the last `window_s` seconds of the engine's clock.

    mfu, mbu: 0 to 1 against the measured ceilings; None before the probe has run.
    mbu_ceiling: which bandwidth mbu is measured against: "DRAM", "cache" or "cache + DRAM"; "" without mbu.
    """

    window_s: float = 0.0
    output_tokens_per_s: float = 0.0
    total_tokens_per_s: float = 0.0
    requests_per_s: float = 0.0
    goodput_per_s: float | None = None
    ttft: Percentiles = Percentiles()
    itl: Percentiles = Percentiles()
    tpot: Percentiles = Percentiles()
    e2e: Percentiles = Percentiles()
    full_batch_share: float | None = None  # of the steps in which requests waited
    mean_batch: float = 0.0
    mfu: float | None = None
    mbu: float | None = None
    host_share: float = 0.0
    host_us: float = 0.0
    prefix_hit_rate: float | None = None
    fragmentation: float = 0.0
    mbu_ceiling: str = ""


@dataclass(frozen=True, slots=True)
class TenantView:
    """A tenant's weight, service received and share of it."""

    name: str
    weight: float
    running: int
    waiting: int
    live_blocks: int
    served_tokens: int
    share: float
    virtual_time: float = 0.0


@dataclass(frozen=True, slots=True)
class CeilingChange:
    """A ceiling that turned out too low, and what showed it: a later probe, or steps that were above it.

    Attributes:
        name: "compute", "DRAM" or "cache".
        source: "a later probe", or "measured steps" (predicted, replayed).
        step, time_s: when it was raised (engine's clock); what was drawn before stood under `before`.
    """

    name: str
    source: str
    step: int
    time_s: float
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class RooflineCeilings:
    """Measured ceilings of this machine (None until probed) with the sizes at which they were measured.

    `cache_bytes` is the size of the cache that `cache_bytes_per_s` belongs to; 0 if not known. `changes` tells how they
    came to be higher than the first probe found them, oldest first; see `core.ceilings`.
    """

    device: str
    peak_flops: float
    dram_bytes_per_s: float
    cache_bytes_per_s: float | None
    working_set_bytes: int
    dtype: str
    measured: bool = True
    cache_bytes: float = 0.0
    changes: tuple[CeilingChange, ...] = ()


@dataclass(frozen=True, slots=True)
class Totals:
    """Counters since the start or the last reset; they never fall."""

    submitted: int = 0
    finished: int = 0
    cancelled: int = 0
    refused: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0  # input tokens run through the model, recompute included
    output_tokens: int = 0
    cached_tokens: int = 0
    queried_tokens: int = 0  # prompt tokens looked up in the prefix index
    worker_restarts: int = 0
    flops: float = 0.0  # estimated by the cost model from the exact steps, as are the bytes
    read_bytes: float = 0.0  # weights and KV
    write_bytes: float = 0.0  # KV
    graph_captures: int = 0  # decode shapes captured as CUDA graphs
    graph_replays: int = 0  # steps that were launched as one graph
    graph_misses: int = 0  # decode-only steps without a graph to replay, captures included


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The engine at one step boundary.

    Attributes:
        state: "starting", "running", "idle", "paused", "stopped" or "failed".
        wall_time_s: WallClock time at publication, for the age badge.
        message: "" or what the person must know now (a worker restart, a refused setting, ...).
        step_record: the latest step, None before the first.
        waiting: at most 500 rows from the head of the queue; `num_waiting` is the true count.
        story: events of selected requests are asked for through `LiveEngine.story`.
    """

    step: int
    time_s: float
    wall_time_s: float
    state: str
    config: EngineConfig
    info: ExecutorInfo | None
    message: str = ""
    progress: str = ""
    num_running: int = 0
    num_waiting: int = 0
    num_preempted: int = 0
    running: Sequence[RequestView] = ()
    waiting: tuple[RequestView, ...] = ()
    preempted: tuple[RequestView, ...] = ()
    ended: tuple[RequestView, ...] = ()  # newest first, at most 50
    blocks: BlockMapView = BlockMapView(0, 16)
    pool: PoolCounts = PoolCounts(0, 0, 0, 0)
    kpis: Kpis = Kpis()
    totals: Totals = Totals()
    step_record: StepRecord | None = None
    admitted: tuple[str, ...] = ()  # joined in the latest step for the first time
    resumed: tuple[str, ...] = ()  # joined in the latest step after a preemption
    passed_over: tuple[PassedOver, ...] = ()
    preemptions: tuple[Preemption, ...] = ()  # newest first, at most 50
    tenants: tuple[TenantView, ...] = ()
    jain_index: float | None = None
    ceilings: RooflineCeilings | None = None
    load_label: str = ""
    recent_requests: tuple[RequestRecord, ...] = ()  # newest first, at most 200
    revision: int = field(default=0)  # grows with each publication
    tallies: Tallies = NOTHING  # since the start or the last reset, as the totals
