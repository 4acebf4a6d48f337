"""The conservation laws, checked after every step in all tests and behind a debug switch when live.

    1  free + cached + live = num_blocks; live = union of all tables; references = tables that hold a block
    2  submitted = waiting + running + preempted + finished + cancelled + refused
    3  planned tokens <= budget, running <= seats, planned rows are running and no victim of their step
    4  computed tokens fit the table and the request; a decoding row has exactly one token to compute
    5  counters never fall, gauges are never negative, 0 <= usage <= 1, all gauges 0 at idle
    6  content: every entry of the prefix index names a block whose tokens match it
    7  progress: a step without a row says why, and the most senior running request is never stalled

Law 6's other half (preempted, chunked, cached and batched runs give the tokens of the plain run) and the bound
of law 7 are properties of whole runs; the tests check them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from core.outputs import SchedulerOutput
from core.request import Request, RequestStatus
from core.scheduler_state import SchedulerState
from core.story_words import broken


def check_laws(state: SchedulerState, flight: SchedulerOutput | None) -> None:
    """Check all laws that hold at a step boundary or between a decision and its booking.

    Raises:
        InvariantError: with the story of the request concerned, if one is.
    """
    _check_blocks(state)
    _check_sets(state)
    _check_requests(state)
    _check_gauges(state)
    _check_index(state)
    if flight is not None:
        _check_decision(state, flight)


def _check_blocks(state: SchedulerState) -> None:
    kv = state.kv
    kv.pool.check()
    kv.swap.check()
    holders: Counter[int] = Counter()
    for table in kv.all_tables():
        if len(set(table.block_ids)) != len(table.block_ids):
            raise broken(table.request, f"a block stands twice in the table {table.block_ids}")
        holders.update(table.block_ids)
    for block_id in range(kv.num_blocks):
        if kv.pool.ref_count(block_id) != holders[block_id]:
            owner = next((t.request for t in kv.all_tables() if block_id in t.block_ids), None)
            raise broken(owner, f"block {block_id}: {kv.pool.ref_count(block_id)} references, {holders[block_id]} tables")
    counts = kv.counts()
    if counts.live != len(holders) or counts.live + counts.cached + counts.free != counts.total:
        raise broken(None, f"{counts} with {len(holders)} blocks in tables")
    if sum(kv.live_by_tenant.values()) != counts.live:
        raise broken(None, f"live blocks by tenant {kv.live_by_tenant} do not add up to {counts.live}")


def _check_sets(state: SchedulerState) -> None:
    c = state.counters
    live = state.num_waiting + state.num_running + len(state.preempted)
    if c.submitted != live + c.finished + c.cancelled + c.refused:
        raise broken(None, f"{c} with {live} live requests")
    if live != len(state.requests) or state.requests.keys() != state.tracks.keys():
        raise broken(None, f"{len(state.requests)} requests by id, {live} in the sets")
    if state.num_running > state.config.max_num_seqs:
        raise broken(None, f"{state.num_running} requests run on {state.config.max_num_seqs} seats")
    running = state.running()
    if state.num_running != len(running):
        raise broken(None, f"{state.num_running} seats are counted, {len(running)} requests run")
    if len({id(r) for r in running}) != len(running):
        raise broken(None, "a request is twice among the running")
    for request in running:
        if request.status is not RequestStatus.RUNNING or request.request_id not in state.kv.tables:
            raise broken(request, "among the running without the status or without a table")
    if len(state.kv.tables) != len(running):
        raise broken(None, f"{len(state.kv.tables)} tables for {len(running)} running requests")
    for request in state.queue.requests():
        if (request.status is RequestStatus.PREEMPTED) != (request.request_id in state.preempted):
            raise broken(request, "in the queue with the wrong status")
        if request.status not in (RequestStatus.WAITING, RequestStatus.PREEMPTED):
            raise broken(request, "in the queue though it does not wait")


def _check_requests(state: SchedulerState) -> None:
    rows = state.rows
    if rows.ids != tuple(r.request_id for r in rows.requests) or len(rows.computed) != len(rows):
        raise broken(None, f"the decode columns differ in length or order: {rows.ids}")
    for request, computed in zip(rows.requests, rows.computed, strict=True):
        table = state.kv.tables[request.request_id]
        if computed != request.num_computed_tokens:
            raise broken(request, f"the decode column says {computed} computed tokens")
        if (computed >= table.capacity_tokens) != (request.request_id in rows.due):
            raise broken(
                request, f"{computed} tokens computed in {table.capacity_tokens} slots, due {request.request_id in rows.due}"
            )
        if request.num_tokens - request.num_computed_tokens != 1:
            raise broken(request, f"decodes with {request.num_tokens - request.num_computed_tokens} tokens to compute")
    for request in state.running():
        table = state.kv.tables[request.request_id]
        if not 0 <= request.num_computed_tokens <= table.capacity_tokens:
            raise broken(request, f"{request.num_computed_tokens} tokens computed in {table.capacity_tokens} slots")
    for request in state.requests.values():
        _check_request(state, request)


def _check_request(state: SchedulerState, request: Request) -> None:
    if not 0 <= request.num_computed_tokens < request.num_tokens:
        raise broken(request, f"{request.num_computed_tokens} of {request.num_tokens} tokens computed")
    if request.num_output_tokens >= request.sampling.max_tokens or request.num_output_tokens != len(request.token_times_s):
        raise broken(request, f"lives with {request.num_output_tokens} output tokens, {len(request.token_times_s)} times")
    swapped = state.kv.is_swapped(request.request_id)
    if swapped and request.status is not RequestStatus.PREEMPTED:
        raise broken(request, "has blocks in host memory though it is not preempted")
    if request.status is not RequestStatus.RUNNING and request.num_computed_tokens and not swapped:
        raise broken(request, "counts computed tokens without a block")


def _check_gauges(state: SchedulerState) -> None:
    for name, account in state.ledger.accounts.items():
        mine = [r for r in state.requests.values() if r.tenant == name]
        running = sum(1 for r in mine if r.status is RequestStatus.RUNNING)
        decoding = sum(1 for r in state.rows.requests if r.tenant == name)
        if (account.running, account.queued, account.decode_rows) != (running, len(mine) - running, decoding):
            raise broken(None, f"gauges of tenant {name} are off: {account.running}, {account.queued}, {account.decode_rows}")
    low = {name: value for name, value in asdict(state.counters).items() if value < state.low_water.get(name, 0)}
    if low:
        raise broken(None, f"counters fell: {low}, were {state.low_water}")
    state.low_water = asdict(state.counters)
    counts = state.kv.counts()
    if not 0.0 <= counts.usage <= 1.0:
        raise broken(None, f"usage is {counts.usage}")
    if not state.requests and (counts.live or counts.swap_used > state.kv.swap.num_settling):
        raise broken(None, f"idle, and the pool is {counts}")


def _check_index(state: SchedulerState) -> None:
    """Live blocks in the index hold what their key says: the key of one of the tables that hold them."""
    kv = state.kv
    for table in kv.all_tables():
        if table.chain is None:
            continue
        for at in range(table.num_published):
            found = kv.pool.lookup(table.chain.key(at))
            if kv.pool.is_cached(table.block_ids[at]) and found != table.block_ids[at]:
                raise broken(table.request, f"block {table.block_ids[at]} is in the index under a key that is not its content's")


def _check_decision(state: SchedulerState, out: SchedulerOutput) -> None:
    planned = out.total_tokens
    if planned > state.config.max_num_batched_tokens:
        raise broken(None, f"step {out.step} plans {planned} tokens, the budget is {state.config.max_num_batched_tokens}")
    columns = {len(c) for c in (out.num_scheduled_tokens, out.num_computed_tokens, out.samples, out.is_prefill)}
    if columns != {len(out.request_ids)} or len(set(out.request_ids)) != len(out.request_ids):
        raise broken(None, f"step {out.step}: columns of {columns} entries for rows {out.request_ids}")
    victims = {p.victim for p in out.preemptions if p.step == out.step}
    for rid, count, start, samples in zip(
        out.request_ids, out.num_scheduled_tokens, out.num_computed_tokens, out.samples, strict=True
    ):
        request = state.requests.get(rid)
        if rid in victims:
            raise broken(request, f"scheduled and preempted in step {out.step}")
        if request is None or request.status is not RequestStatus.RUNNING:
            continue  # cancelled after the decision
        if count < 1 or start + count > request.num_tokens or samples != (start + count == request.num_tokens):
            raise broken(request, f"planned {count} tokens from {start}, samples {samples}")
        if start + count > state.kv.tables[rid].capacity_tokens:
            raise broken(request, f"planned up to token {start + count} beyond its table")
    if state.requests and not out.request_ids and not (out.passed_over or state.num_running):
        raise broken(None, f"step {out.step} runs nothing and says nothing of the requests that wait")
