"""Scenario files: read, refused with the line, written back, watched."""

from __future__ import annotations

import os
import queue
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.config import BatchPolicy, QueuePolicy
from core.devices import DEVICES
from core.lengths import LengthSpec
from core.load_spec import ArrivalProcess
from core.scenario import Scenario, ScenarioError, TraceSource, parse_scenario, read_scenario
from core.scenario_text import scenario_toml, schema
from core.scenario_watch import ScenarioWatcher
from tests.live_cases import PATIENCE_S

FULL = """\
name = "evening peak"

[model]
model = "smollm2"
weight_dtype = "int8"

[scheduler]
max_num_seqs = 64
queue_policy = "wfq"
batch_policy = "prefill_first"

[[scheduler.tenants]]
name = "big"
weight = 3.0

[[scheduler.tenants]]
name = "small"
max_seqs = 2

[cache]
num_blocks = 512
block_size = 8

[load]
process = "gamma"
rate_per_s = 4.5
prompt_tokens = { kind = "lognormal", median = 96, sigma = 0.6, low = 16, high = 512 }
output_tokens = 64
slo_ttft_s = 0.5

[[load.tenants]]
name = "big"
weight = 3.0

[device]
name = "H100 SXM"
tensor_parallel = 2
"""


def test_a_full_scenario() -> None:
    found = parse_scenario(FULL)
    assert found.name == "evening peak"
    assert found.engine.weight_dtype == "int8"
    scheduler = found.engine.scheduler
    assert (scheduler.max_num_seqs, scheduler.queue_policy) == (64, QueuePolicy.WEIGHTED_FAIR)
    assert scheduler.batch_policy is BatchPolicy.PREFILL_FIRST
    assert [(t.name, t.weight, t.max_seqs) for t in scheduler.tenants] == [("big", 3.0, None), ("small", 1.0, 2)]
    assert found.engine.cache.capacity_tokens == 4096
    assert found.load is not None
    assert found.load.process is ArrivalProcess.GAMMA
    assert found.load.prompt_tokens == LengthSpec.lognormal(96, 0.6, 16, 512)
    assert found.load.output_tokens == LengthSpec.fixed(64)
    assert (found.device, found.tensor_parallel) == (DEVICES["H100 SXM"], 2)
    assert parse_scenario("") == Scenario()


def test_written_scenarios_read_back() -> None:
    trace = 'name = "t"\n[trace]\npath = "a b.csv"\ntime_unit = "ms"\nrate = 0.5\n'
    custom = "[device]\nname = 'mine'\npeak_tflops = 100\nbandwidth_gb_s = 900.5\nmemory_gb = 24\nprice_per_hour = 1.25\n"
    lengths = "[load]\nprompt_tokens = [3, 5, 8]\noutput_tokens = { kind = 'uniform', low = 2, high = 9 }\nseed = 12\n"
    for text in (FULL, trace, custom, lengths, "", "[load]\n"):
        scenario = parse_scenario(text)
        again = scenario_toml(scenario)
        assert parse_scenario(again) == scenario
        assert scenario_toml(parse_scenario(again)) == again
    assert parse_scenario(trace).trace == TraceSource("a b.csv", time_unit="ms", rate=0.5)
    assert "max_num_batched_tokens" not in scenario_toml(parse_scenario(FULL))  # defaults are not written


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_text_survives(name: str, description: str) -> None:
    scenario = Scenario(name=name, description=description)
    assert parse_scenario(scenario_toml(scenario)) == scenario


def replaced(old: str, new: str) -> str:
    assert old in FULL
    return FULL.replace(old, new)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (replaced("max_num_seqs = 64", "max_num_seqs = = 64"), 8, "not TOML"),
        (replaced("max_num_seqs = 64", "max_num_seqs = 0"), 8, "max_num_seqs is 0; give a whole number"),
        (replaced("max_num_seqs = 64", "max_num_seq = 64"), 8, "unknown key 'max_num_seq' in scheduler; known: "),
        (replaced('queue_policy = "wfq"', 'queue_policy = "fifo"'), 9, "queue_policy is 'fifo'; choose one of"),
        (replaced("max_seqs = 2", "max_seqs = 0"), 18, "max_seqs of tenant small is 0"),
        (replaced('name = "big"\nweight = 3.0\n\n[[s', 'name = "big"\nweight = -3.0\n\n[[s'), 14, "weight of tenant big is -3.0"),
        (replaced("block_size = 8", "block_size = 8.5"), 22, "block_size is 8.5"),
        (replaced("rate_per_s = 4.5", 'rate_per_s = "fast"'), 26, "rate_per_s is 'fast'"),
        (replaced("output_tokens = 64", "output_tokens = 0"), 28, "the shortest length is 0"),
        (replaced("output_tokens = 64", "output_tokens = 'x'"), 28, "output_tokens is 'x'"),
        (replaced('name = "H100 SXM"', 'name = "H900"'), 36, "device 'H900' is not known"),
        (replaced("tensor_parallel = 2", "tensor_parallel = 0"), 37, "tensor_parallel is 0"),
        (replaced("[device]", "[devices]"), 35, "unknown key 'devices'"),
        (replaced('weight_dtype = "int8"', 'weight_dtype = "int3"'), 5, "weight_dtype is 'int3'"),
        (replaced('weight_dtype = "int8"', "history_steps = 5"), 5, "unknown key 'history_steps' in model"),
        (FULL + "[trace]\npath = 'x'\n", 38, "not both"),
        ("[trace]\nrate = 2.0\n", 1, "needs the path"),
        ("[trace]\npath = 'x'\nrate = -2.0\n", 3, "rate is -2.0"),
        ("[scheduler]\npreemption_mode = 'swap'\n", 1, "num_swap_blocks is 0"),
        ("load = 3\n", 1, "load must be a table"),
        ("name = 3\n", 1, "name is 3"),
    ],
)
def test_broken_files_name_the_line(text: str, line: int, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text)
    assert message in str(caught.value)
    assert caught.value.line == line
    assert str(caught.value).startswith(f"line {line}: ")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot be read"):
        read_scenario(tmp_path / "none.toml")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError, match="not UTF-8"):
        read_scenario(binary)
    marked = tmp_path / "marked.toml"
    marked.write_bytes(b"\xef\xbb\xbfname = 'x'\r\n")
    assert read_scenario(marked).name == "x"


def test_the_schema_lists_every_key() -> None:
    rows = {(r.table, r.key): r.default for r in schema()}
    assert rows["scheduler", "max_num_seqs"] == "32"
    assert rows["load", "process"] == '"poisson"'
    assert ("load.tenants", "weight") in rows
    assert rows["trace", "rate"] == "1.0"


class Told:
    """What a watcher tells; while `saving` is held, the quiet time does not end."""

    def __init__(self, path: Path) -> None:
        self.queue: queue.Queue[object] = queue.Queue()
        self.saving = saving = threading.Lock()

        class Patient(ScenarioWatcher):
            def _rest(self) -> None:
                with saving:
                    super()._rest()

        self.watcher = Patient(path, self.queue.put, self.queue.put, quiet_s=0.1)

    def __enter__(self) -> Told:
        self.watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.watcher.stop()
        self.watcher.stop()

    def next(self) -> object:
        return self.queue.get(timeout=PATIENCE_S)

    def silent(self) -> bool:
        try:
            self.queue.get(timeout=0.6)
        except queue.Empty:
            return True
        return False


def test_saving_tells_once_and_a_broken_file_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text("name = 'one'\n")
    with Told(path) as told:
        first = told.next()
        assert isinstance(first, Scenario)
        assert first.name == "one"
        with told.saving:
            for part in ("name = 'tw", "name = 'two'", "name = 'two'\n"):  # an editor that saves in several steps
                path.write_text(part)
        second = told.next()
        assert isinstance(second, Scenario)
        assert second.name == "two"
        path.write_text("name = 'two'\n[cache]\nblock_size = 0\n")
        broken = told.next()
        assert isinstance(broken, ScenarioError)
        assert broken.line == 3
        assert told.watcher.last_error is broken
        path.write_text("name = 'two'\n")
        again = told.next()
        assert isinstance(again, Scenario)
        assert told.watcher.last_error is None
        path.touch()  # nothing has changed
        path.write_text("")  # an editor that has truncated the file and is slow to write it
        assert told.silent()


def test_a_rename_over_the_file_is_a_save(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    with Told(path) as told:
        beside = tmp_path / ".scenario.toml.swp"
        beside.write_text("name = 'renamed'\n")
        os.replace(beside, path)  # noqa: PTH105
        found = told.next()
        assert isinstance(found, Scenario)
        assert found.name == "renamed"
        path.unlink()
        (tmp_path / "other.toml").write_text("name = 'other'\n")
        assert told.silent()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    watcher = ScenarioWatcher(tmp_path / "no" / "scenario.toml", lambda _: None, lambda _: None)
    with pytest.raises(ScenarioError, match="does not exist"):
        watcher.start()
    watcher.stop()
