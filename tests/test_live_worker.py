"""The live engine on a real worker with a real (tiny) model: deaths, restarts, ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from live_cases import ME, crowding, finished, live_engine, settled, wait_until

from core.config import CacheConfig, EngineConfig, SchedulerConfig
from core.factory import create_engine
from core.live_defaults import build_engine
from core.request import SamplingParams

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = [f"{word} and some more words that fill a block or two" for word in ("one", "two", "three", "four", "five", "six")]
SAMPLING = [
    SamplingParams(max_tokens=80, ignore_eos=True, temperature=0.0 if i % 2 else 0.9, seed=i) for i in range(len(PROMPTS))
]


def config(**knobs) -> EngineConfig:
    plain = {
        "model": "tiny",
        "dtype": "float32",
        "executor": "worker",
        "check_invariants": True,
        "num_threads": 1,
        "scheduler": SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64),
        "cache": CacheConfig(num_blocks=64, block_size=8),
    }
    return EngineConfig(**(plain | knobs))


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """What each request answers alone, in this process."""
    engine = create_engine(config(executor="inprocess", clock="step"))
    answers = []
    for prompt, sampling in zip(PROMPTS, SAMPLING, strict=True):
        engine.add_request(prompt, sampling)
        answers.append("".join(e.text for e in engine.run_until_idle()))
    engine.close()
    return answers


def worker_pids() -> list[int]:
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if "core.runtime.worker_main" in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def submit_all(live) -> list[str]:
    results = [live.submit(prompt, sampling=sampling, **ME) for prompt, sampling in zip(PROMPTS, SAMPLING, strict=True)]
    assert all(r.accepted for r in results), results
    return [r.value for r in results]


def test_a_worker_killed_twice_in_the_middle_is_back_in_ten_seconds_and_costs_no_request_and_no_token(expected):
    with live_engine(factory=build_engine, config=config()) as live:
        begun_s = time.perf_counter()
        wait_until(lambda: live.latest().state == "idle")
        start_s = time.perf_counter() - begun_s
        (first,) = worker_pids()
        live.set_speed(20.0, **ME)  # the requests need eight seconds: they run whenever this thread gets to its kills
        ids = submit_all(live)
        wait_until(lambda: live.latest().step >= 12)
        os.kill(first, signal.SIGKILL)
        killed_s = time.perf_counter()
        wait_until(lambda: live.latest().totals.worker_restarts == 1)
        assert "SIGKILL" in live.latest().message
        assert "recomputed" in live.latest().message
        step = live.latest().step
        wait_until(lambda: live.latest().step > step + 5)
        back_s = time.perf_counter() - killed_s
        (second,) = worker_pids()
        assert second != first
        assert live.latest().num_running == 4
        os.kill(second, signal.SIGKILL)
        live.set_speed(None, **ME)
        for request_id, text in zip(ids, expected, strict=True):
            assert finished(live, request_id) == "length"
            assert live.stream(request_id).text == text
        totals = settled(live).totals
        assert (totals.submitted, totals.finished, totals.worker_restarts) == (6, 6, 2)
        assert back_s < max(10 * crowding(), 4 * start_s), "a start again takes what the start took"
        assert len(worker_pids()) == 1
    wait_until(lambda: not worker_pids())


def test_a_worker_killed_while_idle_or_paused_is_replaced_and_its_cache_forgotten(expected):
    with live_engine(factory=build_engine, config=config()) as live:
        wait_until(lambda: live.latest().state == "idle")
        first_id = live.submit(PROMPTS[0], sampling=SAMPLING[0], **ME).value
        finished(live, first_id)
        (pid,) = worker_pids()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: worker_pids() not in ([], [pid]), what="a new worker without any request")
        again = live.submit(PROMPTS[0], sampling=SAMPLING[0], **ME).value
        assert finished(live, again) == "length"
        assert live.stream(again).text == live.stream(first_id).text == expected[0]
        assert settled(live).totals.worker_restarts == 1

        live.pause(**ME)
        (pid,) = worker_pids()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: worker_pids() not in ([], [pid]))
        wait_until(lambda: live.latest().progress == "")
        assert live.latest().state == "paused"
        live.start(**ME)
        more = live.submit(PROMPTS[1], sampling=SAMPLING[1], **ME).value
        assert finished(live, more) == "length"
        assert live.stream(more).text == expected[1]


def test_another_configuration_gets_another_worker_and_a_bad_one_brings_the_old_back(tmp_path, expected):
    with live_engine(factory=build_engine, config=config()) as live:
        wait_until(lambda: live.latest().state == "idle")
        (first,) = worker_pids()
        result = live.set_model(seed=5, **ME)
        assert result.accepted, result.message
        (second,) = worker_pids()
        assert second != first
        (tmp_path / "config.json").write_text("{")
        result = live.set_model(model=str(tmp_path), **ME)
        assert not result.accepted
        assert "config.json" in result.message
        assert "previous model runs again" in result.message
        assert live.config.seed == 5
        assert live.set_model(seed=0, **ME).accepted
        again = live.submit(PROMPTS[2], sampling=SAMPLING[2], **ME).value
        assert finished(live, again) == "length"
        assert live.stream(again).text == expected[2]
        assert live.set_cache(num_blocks=40, **ME).accepted
        assert live.latest().info.num_blocks == 40
        assert len(worker_pids()) == 1


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL", "SIGINT", "exit"])
def test_the_end_of_the_process_is_the_end_of_the_worker(how, tmp_path):
    script = tmp_path / "dashboard.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import signal, sys, time
            sys.path.insert(0, {str(ROOT)!r})
            from core.config import EngineConfig
            from core.live import get_live
            from core.workload import LoadSpec

            if __name__ == "__main__":
                signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
                signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits it ignored
                live = get_live(EngineConfig(model="tiny", dtype="float32", executor="worker"), load=LoadSpec(rate_per_s=20.0))
                while live.latest().step < 5:
                    time.sleep(0.02)
                print("flowing", flush=True)
                if {how!r} == "exit":
                    sys.stdin.readline()
                    sys.exit(0)
                time.sleep(60)
            else:
                raise SystemExit("the worker imported the main script again")
            """
        )
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    parent = subprocess.Popen([sys.executable, str(script)], text=True, **pipes)
    try:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stderr is not None
        line = parent.stdout.readline()
        assert line == "flowing\n", parent.stderr.read()
        workers = [c for c in psutil.Process(parent.pid).children() if "core.runtime.worker_main" in c.cmdline()]
        assert len(workers) == 1
        began = time.perf_counter()
        if how == "exit":
            parent.stdin.write("end\n")
            parent.stdin.flush()
        else:
            parent.send_signal(getattr(signal, how))
        parent.wait(60)
        _, alive = psutil.wait_procs(workers, timeout=60)
        assert not alive
        assert time.perf_counter() - began < 5 * crowding()
        if how in ("SIGTERM", "exit"):
            assert parent.returncode == 0
            assert parent.stderr.read() == ""
    finally:
        parent.kill()
        parent.wait()
        parent.stdin.close()
        parent.stdout.close()
        parent.stderr.close()
