"""Same request, same seed, same tokens whatever happens around it; same calls, same outputs, byte for byte."""

from __future__ import annotations

import hashlib
import itertools
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest

from core.config import AdmissionPolicy, BatchPolicy, PreemptionMode, QueuePolicy, VictimPolicy
from core.outputs import ModelRunnerOutput, SchedulerOutput
from core.request import Request, SamplingParams
from tests.scheduler_helpers import Driver, create_request, create_scheduler, distinct_tokens
from tests.scheduler_model import expected_tokens

COMBINATIONS = list(itertools.product(QueuePolicy, BatchPolicy, AdmissionPolicy, PreemptionMode))


def _requests(rng: random.Random) -> list[tuple[float, Request]]:
    """A small mixed load on one clock: shared heads, three tenants, priorities, seeds."""
    out = []
    for number in range(14):
        head = distinct_tokens(f"head{number % 3}", rng.choice([0, 4, 8]))
        prompt = (*head, *distinct_tokens(f"tail{number}", rng.randint(1, 9)))
        at = float(rng.randint(0, 20))
        params = SamplingParams(max_tokens=rng.randint(1, 12), ignore_eos=True, seed=number if number % 2 else None)
        fields = {"tenant": rng.choice("abc"), "priority": rng.randint(0, 3)}
        out.append((at, create_request(f"r{number}", prompt, at=at, sampling=params, **fields)))
    return sorted(out, key=lambda pair: (pair[0], pair[1].request_id))


def _run(seed: int, *, check: bool = True, **knobs: object) -> tuple[Driver, list[Request]]:
    driver = Driver(
        create_scheduler(num_blocks=11, block_size=4, max_num_batched_tokens=21, num_swap_blocks=6, max_num_seqs=6, **knobs),
        check=check,
    )
    load = _requests(random.Random(seed))
    requests = [request for _, request in load]
    while load or driver.scheduler.has_work():
        while load and load[0][0] <= driver.now:
            driver.add(load.pop(0)[1])
        driver.step()
        assert driver.now < 3000
    return driver, requests


@pytest.mark.parametrize(("queue", "batch", "admission", "mode"), COMBINATIONS)
def test_tokens_for_every_combination_of_policies(
    queue: QueuePolicy, batch: BatchPolicy, admission: AdmissionPolicy, mode: PreemptionMode
) -> None:
    victims = list(VictimPolicy)
    victim = victims[COMBINATIONS.index((queue, batch, admission, mode)) % len(victims)]
    driver, requests = _run(
        3, queue_policy=queue, batch_policy=batch, admission_policy=admission, preemption_mode=mode, victim_policy=victim
    )
    seeds = {new.request_id: new.sampling_seed for out in driver.outputs for new in out.new_requests}
    for request in requests:
        assert request.num_output_tokens == request.sampling.max_tokens
        assert request.output_token_ids == expected_tokens(request, seeds[request.request_id], request.num_output_tokens)


def test_a_seed_is_the_requests_own() -> None:
    driver, _ = _run(1)
    seeds = {new.request_id: new.sampling_seed for out in driver.outputs for new in out.new_requests}
    assert all(seeds[f"r{n}"] == n for n in range(1, 14, 2))
    assert len(set(seeds.values())) == 14
    again, _ = _run(1, queue_policy="priority", batch_policy="separate")
    assert seeds == {new.request_id: new.sampling_seed for out in again.outputs for new in out.new_requests}


@pytest.mark.parametrize(("queue", "batch"), list(itertools.product(QueuePolicy, BatchPolicy)))
def test_same_calls_give_equal_outputs(queue: QueuePolicy, batch: BatchPolicy) -> None:
    first, _ = _run(5, check=False, queue_policy=queue, batch_policy=batch)
    second, _ = _run(5, check=False, queue_policy=queue, batch_policy=batch)
    assert first.outputs == second.outputs
    assert pickle.dumps(first.outputs) == pickle.dumps(second.outputs)
    assert first.events == second.events


def test_a_recorded_run_replays_to_identical_decisions() -> None:
    """Only arrivals and sampled tokens are fed back, no executor and no KV."""
    recorded, requests = _run(7, queue_policy="wfq", preemption_mode="swap")
    tokens = {r.request_id: list(r.output_token_ids) for r in requests}
    replay = create_scheduler(
        num_blocks=11, block_size=4, max_num_batched_tokens=21, num_swap_blocks=6, max_num_seqs=6, queue_policy="wfq",
        preemption_mode="swap",
    )  # fmt: skip
    load = _requests(random.Random(7))
    outs: list[SchedulerOutput] = []
    now = 0.0
    while load or replay.has_work():
        while load and load[0][0] <= now:
            replay.add_request(load.pop(0)[1])
        out = replay.schedule(now)
        sampled = [(rid, tokens[rid].pop(0)) for rid, samples in zip(out.request_ids, out.samples, strict=True) if samples]
        now += 1.0
        replay.update_from_output(out, ModelRunnerOutput(out.step, tuple(sampled)), now)
        outs.append(out)
    assert outs == recorded.outputs


def run_digest() -> str:
    """Digest of the decisions of one run; printed by the subprocesses of the next test."""
    driver, _ = _run(9, check=False, queue_policy="lpm", lookahead=2)
    return hashlib.sha256(repr(driver.outputs).encode()).hexdigest()


def test_decisions_do_not_depend_on_the_hash_seed_of_the_process() -> None:
    root = Path(__file__).resolve().parents[1]
    code = "from tests.test_sched_identity import run_digest; print(run_digest())"
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(root)},
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
            timeout=400,
        ).stdout
        for seed in (1, 2)
    }
    assert digests == {run_digest() + "\n"}
