"""The worker process: messages, errors, deaths, restarts, and no orphan ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest
from live_cases import PATIENCE_S, crowding, wait_until

from core.config import CacheConfig, EngineConfig
from core.errors import CheckpointError, ConfigError, ExecutorError, WorkerDied
from core.executor import Executor
from core.outputs import SchedulerOutput
from core.runtime.worker import RestartPolicy, WorkerExecutor
from core.runtime.worker_main import resolve_builder
from core.runtime.worker_process import describe_exit

ROOT = Path(__file__).resolve().parents[1]
CONFIG = EngineConfig(model="tiny", executor="worker", cache=CacheConfig(num_blocks=32))


def start(name: str = "build", **options) -> WorkerExecutor:
    return WorkerExecutor(CONFIG, builder=f"tests.worker_fakes:{name}", **options)


def step(number: int) -> SchedulerOutput:
    return SchedulerOutput(number, ("a", "b"), (1, 1), (7, 9), (True, True), (False, False))


@pytest.fixture
def worker():
    executor = start()
    yield executor
    executor.close()


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_step_crosses_the_pipe_and_its_transfer_is_measured(worker):
    executor: Executor = worker
    outputs = [executor.execute_model(step(5)) for _ in range(20)]
    output = outputs[-1]
    assert output.step == 5
    assert output.sampled == (("a", 107), ("b", 109))
    assert output.timing.forward_s == 0.001
    transfers_s = [o.timing.transfer_s for o in outputs]
    assert 0 < min(transfers_s) < 0.1, "some get through undisturbed by other processes"
    assert all(transfers_s)
    assert executor.info.model_label == "fake"
    assert executor.info.num_blocks == 32


def test_what_the_worker_says_of_itself_is_renewed_when_other_kernels_take_over(worker):
    said = []
    for number in range(4):
        worker.execute_model(step(number))
        said.append(worker.info.kernels)
    assert said == ["plain", "plain", "compiled", "compiled"]


def test_overhead_of_a_step_is_well_below_a_millisecond(worker):
    ids = tuple(f"request-{i}" for i in range(64))
    big = SchedulerOutput(1, ids, (1,) * 64, tuple(range(64)), (True,) * 64, (False,) * 64)
    for _ in range(50):
        worker.execute_model(big)
    seconds = sorted(worker.execute_model(big).timing.transfer_s for _ in range(300))
    assert seconds[150] < 0.001 or seconds[15] < 0.0005, "where others want the cores, the undisturbed steps are what it costs"


def test_messages_larger_than_the_pipe_pass_whole(worker):
    ids = tuple(f"request-{i}-{'x' * 50}" for i in range(5000))
    output = worker.execute_model(SchedulerOutput(1, ids, (1,) * 5000, tuple(range(5000)), (True,) * 5000, (False,) * 5000))
    assert len(output.sampled) == 5000
    assert output.sampled[4999] == (ids[4999], 5099)


def test_what_the_worker_prints_does_not_disturb_the_messages(worker):
    assert worker.execute_model(step(670)).step == 670
    assert worker.execute_model(step(671 - 1)).sampled


def test_an_error_in_the_forward_pass_arrives_with_its_text_and_the_worker_lives_on(worker):
    with pytest.raises(ExecutorError, match="RuntimeError: a kernel was unhappy") as caught:
        worker.execute_model(step(666))
    assert not isinstance(caught.value, WorkerDied)
    assert any("worker_fakes" in note for note in caught.value.__notes__)
    with pytest.raises(ExecutorError, match="MemoryError"):
        worker.execute_model(step(667))
    assert worker.execute_model(step(1)).graph == "call 3"
    assert worker.restarts == 0


def test_kill_during_a_step_is_reported_and_a_new_worker_takes_over(worker):
    first = worker.pid
    with pytest.raises(WorkerDied, match="SIGKILL; if nobody killed it, the system ran out of memory"):
        worker.execute_model(step(668))
    assert worker.pid != first
    assert worker.restarts == 1
    assert worker.execute_model(step(2)).graph == "call 1", "the new worker begins with an empty cache"
    assert is_gone(first)


def test_a_batch_is_prepared_in_the_worker_and_a_death_there_is_told_once(worker):
    worker.prepare_model(step(5))
    assert worker.execute_model(step(5)).graph == "call 11"
    with pytest.raises(WorkerDied, match="in step 668"):
        worker.prepare_model(step(668))
    assert worker.execute_model(step(6)).graph == "call 1"


def test_a_crash_tells_its_last_words(worker):
    with pytest.raises(WorkerDied, match=r"ended with status 3.*last cry of the kernel"):
        worker.execute_model(step(671))


def test_kill_between_steps_is_found_at_once_and_raised_by_the_next_step(worker):
    worker.execute_model(step(1))
    assert worker.poll_ready()
    os.kill(worker.pid, signal.SIGKILL)
    wait_until(lambda: not worker.poll_ready(), what="the death to be found")
    assert worker.restarts == 1
    wait_until(worker.poll_ready, what="the new worker")
    with pytest.raises(WorkerDied, match="between two steps"):
        worker.execute_model(step(2))
    assert worker.execute_model(step(3)).step == 3


def test_kill_without_a_look_between_is_raised_by_the_step(worker):
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="in step 1"):
        worker.execute_model(step(1))
    assert worker.execute_model(step(2)).step == 2


def test_a_stopped_worker_is_waited_for_and_loses_nothing(worker):
    os.kill(worker.pid, signal.SIGSTOP)
    began = time.monotonic()  # before the timer: it may fire late, never early
    threading.Timer(0.5, os.kill, (worker.pid, signal.SIGCONT)).start()
    assert worker.execute_model(step(1)).step == 1
    assert time.monotonic() - began > 0.4


def test_restarts_are_bounded_and_the_end_is_clear():
    worker = start(restart_policy=RestartPolicy(max_restarts=2, window_s=60.0))
    try:
        for _ in range(2):
            with pytest.raises(WorkerDied):
                worker.execute_model(step(668))
        with pytest.raises(ExecutorError, match="died 3 times within 60 s and is not started again") as caught:
            worker.execute_model(step(668))
        assert not isinstance(caught.value, WorkerDied)
        with pytest.raises(ExecutorError, match="not started again"):
            worker.execute_model(step(1))
    finally:
        worker.close()


def test_old_restarts_are_forgotten():
    worker = start(restart_policy=RestartPolicy(max_restarts=1, window_s=0.05))
    try:
        for _ in range(3):
            with pytest.raises(WorkerDied):
                worker.execute_model(step(668))
            time.sleep(0.06)
        assert worker.execute_model(step(1)).step == 1
        assert worker.restarts == 3
    finally:
        worker.close()


def test_a_worker_that_can_never_load_again_fails_clearly(tmp_path, monkeypatch):
    monkeypatch.setenv("BATCHSCOPE_TEST_MARKER", str(tmp_path / "loaded"))
    worker = start("build_dies_after_first_load", restart_policy=RestartPolicy(max_restarts=2, window_s=60.0))
    try:
        with pytest.raises(WorkerDied):
            worker.execute_model(step(668))
        with pytest.raises(ExecutorError, match="not started again"):
            worker.execute_model(step(1))
    finally:
        worker.close()


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("build_checkpoint_error", CheckpointError, "cut off after 12 bytes"),
        ("build_config_error", ConfigError, "num_blocks is too large"),
        ("build_crash", ExecutorError, "could not load tiny: KeyError: 'lm_head.weight'"),
        ("build_killed", ExecutorError, "SIGKILL.*while it loaded tiny"),
        ("no_such_builder", ExecutorError, "no_such_builder"),
    ],
)
def test_a_failed_first_load_raises_what_the_worker_found(name, kind, words):
    before = {p.pid for p in psutil.Process().children()}
    with pytest.raises(kind, match=words):
        start(name)
    assert {p.pid for p in psutil.Process().children()} <= before, "a failed load left a process behind"


def test_progress_is_told_and_an_exception_from_it_ends_the_load():
    lines: list[str] = []

    class Stop(Exception):
        pass

    def on_progress(text: str) -> None:
        lines.append(text)
        if text == "reading part 3":
            raise Stop

    with pytest.raises(Stop):
        start("build_slowly", on_progress=on_progress)
    assert "reading part 2" in lines
    assert lines[-1] == "reading part 3", "the load was not waited for"


def test_close_is_quick_in_the_middle_of_a_step_and_harmless_twice(tmp_path, monkeypatch):
    inside = tmp_path / "inside"
    monkeypatch.setenv("BATCHSCOPE_TEST_MARKER", str(inside))
    worker = start()
    pid = worker.pid
    errors: list[BaseException] = []

    def run() -> None:
        try:
            worker.execute_model(step(669))  # sleeps for a minute
        except ExecutorError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(inside.exists, what="the middle of the step")
    began = time.monotonic()
    worker.close()
    thread.join(PATIENCE_S)
    assert time.monotonic() - began < 5 * crowding()
    assert not thread.is_alive()
    assert "closed" in str(errors[0])
    assert is_gone(pid)
    worker.close()
    with pytest.raises(ExecutorError, match="closed"):
        worker.execute_model(step(1))
    with pytest.raises(ExecutorError, match="closed"):
        worker.poll_ready()


def test_resize_reaches_the_worker_and_survives_its_death(worker):
    worker.resize(64, 8, 0)
    assert (worker.info.num_blocks, worker.info.block_size) == (64, 8)
    with pytest.raises(ConfigError, match="do not fit"):
        worker.resize(2_000_000, 16, 0)
    assert worker.call("pid_and_signals")[0] == worker.pid
    assert worker.info.num_blocks == 64, "after a refused size the pool has the old one"
    worker.resize(13, 16, 0)  # the worker dies of this size and is replaced by one that starts with it
    assert worker.info.num_blocks == 13
    assert worker.restarts == 1
    assert worker.execute_model(step(1)).step == 1


def test_ctrl_c_is_not_the_workers_business(worker):
    pid, ignores_sigint, group = worker.call("pid_and_signals")
    assert pid == worker.pid
    assert ignores_sigint
    assert group != os.getpgrp()
    os.kill(pid, signal.SIGINT)
    assert worker.execute_model(step(1)).step == 1
    assert worker.pid == pid


def test_the_worker_imports_what_the_parent_can_and_nothing_of_its_main_script(worker):
    search_path, heavy = worker.call("environment")
    assert search_path == sys.path
    assert heavy == []


@pytest.mark.parametrize("how", ["kill", "term", "exit", "busy"])
def test_no_orphan_is_left_when_the_parent_ends(how, tmp_path, monkeypatch):
    inside = tmp_path / "inside"
    monkeypatch.setenv("BATCHSCOPE_TEST_MARKER", str(inside))
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, sys, threading, time
            sys.path.insert(0, {str(ROOT)!r})
            from core.config import CacheConfig, EngineConfig
            from core.outputs import SchedulerOutput
            from core.runtime.worker import WorkerExecutor
            worker = WorkerExecutor(EngineConfig(model="tiny"), builder="tests.worker_fakes:build")
            print(worker.pid, flush=True)
            if {how!r} == "exit":
                os._exit(0)
            if {how!r} == "busy":
                worker.execute_model(SchedulerOutput(669))
            time.sleep(60)
            """
        )
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    if how != "exit":
        if how == "busy":
            wait_until(inside.exists, what="the middle of the step")
        assert not is_gone(pid)
        parent.send_signal(signal.SIGTERM if how == "term" else signal.SIGKILL)
    parent.wait(PATIENCE_S)
    parent.stdout.close()
    wait_until(lambda: is_gone(pid), 30.0, what="the end of the worker, whose step would last a minute")


def test_exit_codes_in_words():
    assert describe_exit(0) == "ended with status 0"
    assert describe_exit(-11) == "was ended by SIGSEGV"
    assert "out of memory" in describe_exit(-9)
    assert "without ending" in describe_exit(None)


def test_a_builder_path_is_checked():
    with pytest.raises(ValueError, match=r"package\.module:function"):
        resolve_builder("core.factory")
