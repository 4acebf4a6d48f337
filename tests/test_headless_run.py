"""`python -m core.run`: a scenario to a bundle, a bundle to a verdict, Ctrl-C to a partial bundle."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from core.bundle import read_bundle
from core.headless import HeadlessRun
from core.repeat import repeat
from core.run import main
from core.scenario import parse_scenario
from tests.live_cases import PATIENCE_S, wait_until

ROOT = Path(__file__).resolve().parents[1]
BURST = """
name = "evening peak"
[model]
model = "{model}"
dtype = "float32"
num_threads = 1
[scheduler]
max_num_seqs = 6
max_num_batched_tokens = 64
[cache]
num_blocks = 40
[load]
process = "{process}"
users = 5
burst_size = 16
num_requests = {requests}
prompt_tokens = {{ kind = "uniform", low = 5, high = 40 }}
output_tokens = 12
prompt_kind = "random"
ignore_eos = true
"""


def scenario(folder: Path, model: str = "tiny", process: str = "burst", requests: int = 16, more: str = "") -> Path:
    path = folder / "peak.toml"
    path.write_text(BURST.format(model=model, process=process, requests=requests) + more)
    return path


def run(*arguments: object) -> tuple[int, str]:
    out = io.StringIO()
    code = main([str(a) for a in arguments], Console(file=out, width=200))
    return code, out.getvalue()


def test_a_scenario_on_the_real_engine_and_its_repetition(tmp_path: Path) -> None:
    code, text = run("--scenario", scenario(tmp_path), "--out", tmp_path / "new" / "out", "--no-probe")
    path = tmp_path / "new" / "out" / "evening-peak.bundle.zip"
    assert code == 0, text
    assert str(path) in text
    bundle = read_bundle(path)
    assert (bundle.manifest.kind, bundle.manifest.requests, bundle.manifest.complete) == ("measured", 16, True)
    assert sum(r.output_tokens for r in bundle.steps) == 16 * 12
    assert bundle.scenario.startswith('name = "evening peak"')
    code, text = run("--bundle", path, "--with-model")
    assert code == 0, text
    assert "The schedule came out identical" in text
    assert f"{16 * 12} of {16 * 12} tokens as recorded" in text


def test_a_scenario_with_a_device_is_predicted_on_it(tmp_path: Path) -> None:
    path = scenario(tmp_path, "smollm2", more='[device]\nname = "H100 SXM"\n')
    code, text = run("--scenario", path, "--out", tmp_path)
    assert code == 0, text
    bundle = read_bundle(tmp_path / "evening-peak.bundle.zip")
    assert bundle.manifest.kind == "predicted"
    assert bundle.record.header.info.device == "H100 SXM"
    assert bundle.record.header.config.cache.num_blocks == 40
    assert repeat(bundle).identical


def test_the_same_scenario_gives_the_same_simulated_run(tmp_path: Path) -> None:
    given = parse_scenario(BURST.format(model="smollm2", process="closed_loop", requests=20).replace("float32", "bfloat16"))
    text = '[device]\nname = "L4"\n'
    given = parse_scenario(BURST.format(model="smollm2", process="closed_loop", requests=20) + text)
    bundles = []
    for _ in range(2):
        headless = HeadlessRun(given, tmp_path)
        headless.run()
        bundles.append(headless.bundle("x", created="now"))
    assert bundles[0] == bundles[1]
    assert bundles[0].manifest.requests == 20


def test_a_trace_is_replayed_at_its_times(tmp_path: Path) -> None:
    (tmp_path / "load.csv").write_text("timestamp,input_length,output_length\n0,20,5\n0.5,30,6\n2.0,10,7\n")
    path = tmp_path / "trace.toml"
    path.write_text(
        '[model]\nmodel = "smollm2"\nexecutor = "simulated"\n[trace]\npath = "load.csv"\ntime_unit = "s"\nrate = 2.0\n'
    )
    code, text = run("--scenario", path, "--out", tmp_path)
    assert code == 0, text
    bundle = read_bundle(tmp_path / "trace.bundle.zip")
    assert [r.output_tokens for r in bundle.requests] == [5, 6, 7]
    assert [round(r.arrival_s, 3) for r in bundle.requests] == [0.0, 0.25, 1.0]


def test_limits_end_a_run_and_endless_loads_need_one(tmp_path: Path) -> None:
    path = scenario(tmp_path, "smollm2", more='[device]\nname = "L4"\n')
    code, text = run("--scenario", path, "--out", tmp_path, "--steps", 10)
    assert code == 0
    assert "ended at the limit of 10 steps" in text
    assert len(read_bundle(tmp_path / "evening-peak.bundle.zip").steps) == 10
    path.write_text('[model]\nmodel = "smollm2"\nexecutor = "simulated"\n[load]\nrate_per_s = 50.0\n')
    code, text = run("--scenario", path, "--out", tmp_path)
    assert code == 2
    assert "never ends" in text
    code, text = run("--scenario", path, "--out", tmp_path, "--seconds", 0.2)
    assert code == 0, text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[load\n", "line 1: this is not TOML"),
        ("[load]\nusers = -1\n", "line 2: users is -1"),
        ('[model]\nmodel = "smollm2"\nexecutor = "simulated"\n', "neither a [load] nor a [trace]"),
        ('[model]\nmodel = "smollm2"\nexecutor = "simulated"\n[trace]\npath = "none.csv"\n', "none.csv"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "s.toml"
    path.write_text(content)
    code, text = run("--scenario", path, "--out", tmp_path / "out")
    assert code == 2
    assert words in text
    assert "Traceback" not in text
    assert not list((tmp_path / "out").glob("*"))


def test_a_folder_that_cannot_be_made_stops_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    code, text = run("--scenario", scenario(tmp_path), "--out", tmp_path / "taken")
    assert code == 2
    assert "is a file and no folder" in text
    code, text = run("--bundle", tmp_path / "none.zip")
    assert code == 2
    assert "there is no file" in text


def test_ctrl_c_leaves_a_valid_partial_bundle(tmp_path: Path) -> None:
    path = scenario(tmp_path, process="closed_loop", requests=1_000_000)
    command = [sys.executable, "-m", "core.run", "--scenario", str(path), "--out", str(tmp_path), "--no-probe"]
    with (tmp_path / "log").open("wb") as log:
        drawn = os.environ | {"PYTHONUNBUFFERED": "1", "FORCE_COLOR": "1", "COLUMNS": "200"}  # the bar is drawn as on a terminal
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=drawn)

    def is_stepping() -> bool:
        text = (tmp_path / "log").read_text()
        assert process.poll() is None, text
        return re.search(r"step [1-9]", text) is not None

    wait_until(is_stepping, 200.0, "a bar that counts steps (kernels may be compiled first)")
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130, (tmp_path / "log").read_text()
    bundle = read_bundle(tmp_path / "evening-peak.bundle.zip")
    assert not bundle.manifest.complete
    assert "stopped by the user after" in bundle.manifest.note
    assert len(bundle.steps) > 0
    assert repeat(bundle).identical
    assert not list(tmp_path.glob(".*part"))
