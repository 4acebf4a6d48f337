"""The short cuts of a decision decide what the long ways decide: the plain admission, and the queue that keeps a line."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from core.config import QueuePolicy, SchedulerConfig
from core.errors import RequestRefused
from core.policies.queue_order import QUEUE_ORDERS
from core.request import Request, SamplingParams
from core.waiting_queue import WaitingQueue
from tests.scheduler_helpers import Driver, create_request, create_scheduler


def life(seed: int, *, plain: bool) -> tuple[Any, ...]:
    """A random life under one configuration that the plain admission serves; all that came of it."""
    rng = random.Random(seed)
    scheduler = create_scheduler(
        num_blocks=rng.randint(8, 40),
        block_size=rng.choice([1, 2, 4]),
        max_num_seqs=rng.randint(2, 8),
        max_num_batched_tokens=rng.randint(2, 24),
        long_prefill_token_threshold=rng.choice([None, None, 2]),
        queue_policy=rng.choice([QueuePolicy.FCFS, QueuePolicy.FCFS, QueuePolicy.PRIORITY, QueuePolicy.SHORTEST_JOB]),
        caching=rng.random() < 0.7,
        preemption_mode=rng.choice(["swap", "recompute"]),
        num_swap_blocks=6,
    )
    assert scheduler._state.is_plain
    scheduler._state.is_plain = plain
    driver = Driver(scheduler)
    live: list[Request] = []
    for number in range(90):
        if rng.random() < 0.5:
            head = tuple(range(1, 1 + rng.choice([0, 4, 8])))
            request = create_request(
                f"r{number}", rng.randint(1, 12), rng.randint(1, 10), tenant=rng.choice("ab"), priority=rng.randint(0, 3)
            )
            request.prompt_token_ids = head + request.prompt_token_ids
            with contextlib.suppress(RequestRefused):
                driver.add(request)
            live.append(request)
        if rng.random() < 0.05 and scheduler.requests:
            driver.abort(rng.choice(sorted(scheduler.requests)))
        if rng.random() < 0.05 and scheduler.requests:
            scheduler.set_priority(rng.choice(sorted(scheduler.requests)), rng.randint(-1, 4), driver.now)
        driver.step()
    driver.run()
    tenants = [(t.name, t.served_tokens) for t in scheduler.tenants()]
    stories = [[(e.step, e.kind, e.detail, e.value) for e in r.story] for r in live]
    return driver.outputs, stories, tenants, scheduler.totals(), [r.output_token_ids for r in live]


@pytest.mark.parametrize("seed", range(12))
def test_the_plain_admission_decides_as_the_general_walk(seed: int) -> None:
    assert life(seed, plain=True) == life(seed, plain=False)


@pytest.mark.parametrize("policy", [QueuePolicy.FCFS, QueuePolicy.PRIORITY, QueuePolicy.SHORTEST_PROMPT])
@pytest.mark.parametrize("grouped", [False, True])
def test_the_queue_is_read_as_if_it_were_sorted(policy: QueuePolicy, grouped: bool) -> None:
    rng = random.Random(5)
    order, config = QUEUE_ORDERS[policy], SchedulerConfig(queue_policy=policy)
    queue = WaitingQueue(order, config, grouped=grouped, virtual_time=lambda name: 0.0, match_tokens=lambda request: 0)
    waiting: dict[str, Request] = {}
    for number in range(3000):
        if rng.random() < 0.55 or not waiting:
            place = number if rng.random() < 0.8 else rng.randrange(number + 1) - 5000  # most come in order
            request = Request(f"r{number}", (1,) * rng.randint(1, 9), SamplingParams(), 0.0, arrival_index=place)
            request.tenant, request.priority = rng.choice("abc"), rng.randint(0, 4)
            waiting[request.request_id] = request
            queue.push(request)
        elif rng.random() < 0.1:
            request = waiting[rng.choice(list(waiting))]
            request.priority = rng.randint(0, 4)
            queue.rekey(request)
        else:
            for request in queue.ordered():
                if rng.random() < 0.7:
                    queue.remove(request)
                    del waiting[request.request_id]
                    if rng.random() < 0.5:
                        break
                elif rng.random() < 0.5:
                    break
        if number % 50 == 0:
            wanted = sorted(waiting.values(), key=lambda r: order.key(r, config))
            assert [order.key(r, config) for r in queue.ordered()] == [order.key(r, config) for r in wanted]
            assert len(queue) == len(waiting)
            assert grouped or queue.head() is queue.preview(1)[0]


def test_the_story_names_every_block_that_the_request_held() -> None:
    driver = Driver(create_scheduler(num_blocks=14, block_size=2, max_num_seqs=4, max_num_batched_tokens=6))
    requests = [create_request(f"r{n}", 5 + n, 12) for n in range(4)]
    driver.add(*requests)
    held: dict[str, list[tuple[int, ...]]] = {r.request_id: [] for r in requests}
    while driver.scheduler.has_work():
        driver.step()
        for request_id, spans in held.items():
            table = driver.scheduler.kv.block_ids(request_id)
            if table and spans and spans[-1] and table[: len(spans[-1])] == spans[-1]:
                spans[-1] = table
            elif table:
                spans.append(table)
    assert sum(r.num_preemptions for r in requests) > 0
    for request in requests:
        told: list[tuple[int, ...]] = []
        for event in request.story:
            if event.kind in ("admitted", "resumed"):
                told.append(event.blocks)
            elif event.kind == "blocks":
                told[-1] += event.blocks
        last = held[request.request_id][-1]
        assert told[-1][: len(last)] == last
        assert len(told) == 1 + request.num_preemptions
        assert sum(map(len, told)) >= sum(map(len, held[request.request_id]))
