"""Lease, limits, audit: one controller, many viewers."""

from __future__ import annotations

import dataclasses
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from live_cases import ME, PATIENCE_S, SHORT, live_engine, ready

from core import ending
from core.clock import VirtualClock
from core.commands import Command, CommandQueue, CommandResult, Outcome, Pending
from core.config import replace_knobs
from core.control import LOCAL, AuditEntry, AuditLog, Lease, LiveLimits
from core.devices import DEVICES
from core.ending import close_others
from core.errors import ConfigError, ControlRefused
from core.live_defaults import config_from_environment, load_from_environment
from core.model_spec import SMOLLM2_135M
from core.sim_jobs import SimulationJobs
from core.whatif import WhatIf

ROOT = Path(__file__).resolve().parents[1]


def lease_and_clock(**options):
    clock = VirtualClock()
    return Lease(lease_s=10.0, clock=clock, **options), clock


def test_the_first_session_controls_and_others_watch():
    lease, clock = lease_and_clock()
    assert lease.view().holder is None
    with pytest.raises(ControlRefused, match="only watches; nobody has control"):
        lease.check("a")
    assert lease.acquire("a", label="Ann").holder == "a"
    lease.check("a")
    with pytest.raises(ControlRefused, match="only watches; Ann has control"):
        lease.check("b")
    clock.advance(4)
    with pytest.raises(ControlRefused, match=r"Ann has control; .* ends in 6 s"):
        lease.acquire("b")
    lease.check(LOCAL)


def test_a_lease_lives_by_heartbeats_and_ends_by_silence():
    lease, clock = lease_and_clock()
    lease.acquire("a")
    for _ in range(5):
        clock.advance(9)
        assert lease.heartbeat("a")
    assert lease.view().expires_in_s == 10
    clock.advance(10)
    assert lease.view().holder is None
    assert not lease.heartbeat("a")
    with pytest.raises(ControlRefused):
        lease.check("a")
    assert lease.acquire("b").holder == "b"
    assert not lease.heartbeat("a")
    assert not lease.release("a")


def test_release_and_hand_over():
    lease, _ = lease_and_clock()
    lease.acquire("a")
    with pytest.raises(ControlRefused):
        lease.hand_over("b", "c")
    lease.hand_over("a", "b", label="Bob")
    assert (lease.view().holder, lease.view().label) == ("b", "Bob")
    with pytest.raises(ControlRefused):
        lease.check("a")
    assert lease.release("b")
    assert lease.view().holder is None
    with pytest.raises(ControlRefused, match="id of a session"):
        lease.acquire("")
    with pytest.raises(ControlRefused, match="id of a session"):
        lease.acquire(LOCAL)


def test_a_token_guards_control_and_lets_its_owner_take_over():
    lease, _ = lease_and_clock(token="näher")
    for wrong in (None, "", "naher"):
        with pytest.raises(ControlRefused, match="token"):
            lease.acquire("a", wrong)
    lease.acquire("a", "näher")
    with pytest.raises(ControlRefused):
        lease.acquire("b", "näher")
    assert lease.acquire("b", "näher", force=True).holder == "b"
    assert lease.view().needs_token
    free, _ = lease_and_clock()
    free.acquire("a")
    with pytest.raises(ControlRefused):
        free.acquire("b", force=True)


def test_every_command_needs_the_lease():
    with live_engine(lease=Lease(lease_s=600.0)) as live:
        ready(live)
        live.acquire("ann", label="Ann")
        commands = {
            "submit": lambda who: live.submit("x", sampling=SHORT, **who),
            "cancel": lambda who: live.cancel("r-000001", **who),
            "priority": lambda who: live.set_priority("r-000001", 1, **who),
            "start": lambda who: live.start(**who),
            "pause": lambda who: live.pause(**who),
            "step": lambda who: live.step_once(**who),
            "reset": lambda who: live.reset(**who),
            "speed": lambda who: live.set_speed(5.0, **who),
            "scheduler": lambda who: live.set_scheduler(max_num_seqs=3, **who),
            "cache": lambda who: live.set_cache(num_blocks=50, **who),
            "load": lambda who: live.set_load(rate_per_s=1.0, **who),
            "model": lambda who: live.set_model(**who),
        }
        before = live.latest().config
        for name, command in commands.items():
            with pytest.raises(ControlRefused, match="only watches; Ann has control"):
                command({"session_id": "bob"})
            assert live.audit()[0].session_id == "bob", name
            assert live.audit()[0].outcome == "refused"
        assert live.latest().config == before
        assert live.load is None
        for name, command in commands.items():
            command({"session_id": "ann", "wait_s": PATIENCE_S})
            assert live.audit()[0].session_id == "ann", name
        live.hand_over("ann", "bob", label="Bob")
        assert live.pause(session_id="bob", wait_s=PATIENCE_S).accepted
        assert live.heartbeat("bob")
        assert live.lease().label == "Bob"
        assert live.release("bob")
        assert live.lease().holder is None


def test_the_audit_list_is_bounded_and_newest_first():
    log = AuditLog(max_entries=3)
    for number in range(5):
        log.add(AuditEntry(float(number), "a", "pause"))
    assert [e.time_s for e in log.entries()] == [4, 3, 2]


def test_limits_make_sense():
    with pytest.raises(ConfigError, match="max_commands is 0"):
        LiveLimits(max_commands=0)


def test_a_pending_command_is_answered_once_and_after_a_close_refused():
    pending = Pending()
    assert (pending.done, pending.result(0.0).outcome) == (False, Outcome.WAITING)
    pending.resolve(CommandResult(Outcome.ACCEPTED, "first"))
    pending.resolve(CommandResult(Outcome.REFUSED, "second"))
    assert pending.result(0.0).message == "first"

    queue = CommandQueue(max_commands=10)
    waiting = [queue.put(Command("pause", lambda: CommandResult(Outcome.ACCEPTED), LOCAL)) for _ in range(3)]
    assert (len(queue), queue.wake.is_set()) == (3, True)
    assert [c.name for c in queue.drain(2)] == ["pause", "pause"]
    queue.close("the engine has stopped")
    assert (waiting[2].result(0.0).outcome, waiting[2].result(0.0).message) == (Outcome.REFUSED, "the engine has stopped")
    with pytest.raises(ControlRefused, match="has stopped"):
        queue.put(Command("pause", lambda: CommandResult(Outcome.ACCEPTED), LOCAL))


def test_the_environment_says_what_the_dashboard_starts_with():
    assert config_from_environment({}).executor == "worker"
    assert config_from_environment({}).model == "smollm2"
    given = {"BATCHSCOPE_MODEL": "tiny", "BATCHSCOPE_DTYPE": "float32", "BATCHSCOPE_CLOCK": "step", "BATCHSCOPE_SEED": "7"}
    config = config_from_environment(given)
    assert (config.model, config.dtype, config.clock, config.seed) == ("tiny", "float32", "step", 7)
    assert load_from_environment({"BATCHSCOPE_RATE": "0"}, 32) is None
    assert load_from_environment({"BATCHSCOPE_RATE": "2.5", "BATCHSCOPE_SEED": "3"}, 32).rate_per_s == 2.5
    assert load_from_environment({}, 32).seed == 0
    assert (load_from_environment({}, 32).ramp_s, load_from_environment({"BATCHSCOPE_RAMP_S": "0"}, 32).ramp_s) == (20.0, 0.0)
    with pytest.raises(ConfigError, match="BATCHSCOPE_RATE is 'fast'"):
        load_from_environment({"BATCHSCOPE_RATE": "fast"}, 32)
    with pytest.raises(ConfigError, match="dtype is 'int3'"):
        config_from_environment({"BATCHSCOPE_DTYPE": "int3"})


@pytest.mark.parametrize("pace", [0.01, 1.0, 10.0])
def test_the_first_load_fills_seats_and_blocks_on_slow_and_fast_machines(pace):
    first, device = config_from_environment({}), DEVICES["L4"]
    load = load_from_environment({}, first.scheduler.max_num_seqs)
    all_at_once = replace_knobs(load, num_requests=400, ramp_s=0.0)
    machine = dataclasses.replace(device, peak_flops=device.peak_flops * pace, memory_bandwidth=device.memory_bandwidth * pace)
    found = WhatIf(
        SMOLLM2_135M,
        machine,
        first.scheduler,
        load=all_at_once,
        num_blocks=first.cache.num_blocks,
    ).run()
    steady = [point for point in found.series if 0.2 < point.time_s / found.duration_s < 0.7]
    assert all(point.waiting > 0 for point in steady)
    assert statistics.fmean(point.running for point in steady) > 0.85 * first.scheduler.max_num_seqs
    assert 0.7 < statistics.fmean(point.kv_usage for point in steady) < 0.97
    assert 0 < found.preemptions < 0.5 * found.finished
    assert {name for name, share in found.bound_shares if share > 0.02} >= {"seats", "KV memory"}


def test_viewers_read_everything():
    with live_engine() as live:
        ready(live)
        live.acquire("ann")
        live.submit("x", sampling=SHORT, **ME)
        assert live.latest().state in ("running", "idle")
        assert live.history() is not None
        assert live.audit()
        assert live.lease().holder == "ann"


ENDING = """
import os, signal, sys, threading, time
from core import ending

def leave_at_once(number, frame):  # a server that goes without its own clean-up
    os._exit(7)

def close():
    if sys.argv[1] == "stuck":
        time.sleep(60)
    print("closed", flush=True)

signal.signal(signal.SIGTERM, signal.SIG_DFL if sys.argv[1] == "default" else leave_at_once)
if sys.argv[1] == "stuck":
    ending.CLOSING_SHARE = 0.02  # half a second for the clean-up, and ample time for the server to act on the signal
ending.end_first(close, limit_s=25.0)
print("up", flush=True)
time.sleep(60)
"""


def test_what_was_named_to_end_is_closed_once_and_then_refuses(monkeypatch):
    monkeypatch.setattr(ending, "_others", [])  # the pages of other tests keep processes of their own in this one
    jobs = SimulationJobs()
    assert jobs.warm().result(240)
    close_others()
    with pytest.raises(RuntimeError, match="have ended"):
        jobs.warm()
    close_others()  # nothing is left to close


@pytest.mark.parametrize(("how", "status", "said"), [("served", 7, "closed"), ("default", -15, "closed"), ("stuck", 7, "")])
def test_what_must_end_first_ends_before_the_server_acts_on_sigterm(how, status, said):
    with subprocess.Popen([sys.executable, "-c", ENDING, how], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read().strip() == said
        assert process.wait(PATIENCE_S) == status
