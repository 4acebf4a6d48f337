"""Other people's load generators against the dashboard: does what they report agree with what the dashboard says?

    python -m benchmarks clients [--only locust,guidellm,aiperf] [--seconds 20] [--users 4] [--model smollm2]

Each comes from PyPI into an environment of its own (see `benchmarks.peers`) and drives the dashboard, which runs idle
in a process of its own. TTFT and ITL are means: the client's by its own report, the dashboard's from the sums and
counts of its /metrics; the dashboard's throughput is the growth of its token counter while it grew. A client that
cannot be installed or run is named with its reason.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from benchmarks.dashboard import served
from benchmarks.export import export_folder, export_tokenizer
from benchmarks.peers import PeerUnavailable, environment
from benchmarks.report import print_json_line, print_table

SCRIPTS = Path(__file__).parent / "peer_scripts"
AGREE_WITHIN = 0.05
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 64
SAMPLE_S = 0.1


@dataclass(frozen=True, slots=True)
class Report:
    """Means in seconds, output tokens a second."""

    ttft_s: float
    itl_s: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Task:
    """What a client has to do."""

    url: str
    model: str
    folder: Path
    out: Path
    seconds: float
    users: int


def _run(command: list[str], task: Task, **settings: str) -> None:
    """Run a client to its end; its output goes to a file beside its report."""
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", "NO_COLOR": "1"}
    log = task.out / "client.log"
    with log.open("wb") as out:
        try:
            done = subprocess.run(
                command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **quiet, **settings}, cwd=task.out,
                timeout=task.seconds + 240, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise PeerUnavailable(f"{Path(command[0]).name} did not end; see {log}") from error
    if done.returncode:
        tail = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise PeerUnavailable(f"{Path(command[0]).name} ended with {done.returncode}: {tail[0] if tail else 'no output'}")


def run_locust(task: Task) -> Report:
    """Locust with a user that times each token; means of its CSV report."""
    python = environment("locust", ["locust"])
    script = str(SCRIPTS / "locust_user.py")
    options = ["--headless", "-u", str(task.users), "-r", "100", "-t", f"{task.seconds:.0f}s", "-s", "60", "--csv", "report"]
    settings = {
        "LOCUST_MODEL": task.model,
        "LOCUST_PROMPT_TOKENS": str(PROMPT_TOKENS),
        "LOCUST_OUTPUT_TOKENS": str(OUTPUT_TOKENS),
    }
    _run([str(python), "-m", "locust", "-f", script, "--host", task.url, *options], task, **settings)
    with (task.out / "report_stats.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["Name"]: row for row in csv.DictReader(file)}
    answers = rows["answer"]
    return Report(
        float(rows["TTFT"]["Average Response Time"]) / 1e3,
        float(rows["ITL"]["Average Response Time"]) / 1e3,
        float(answers["Requests/s"]) * float(answers["Average Content Size"]),
    )


def run_guidellm(task: Task) -> Report:
    """GuideLLM, concurrent profile on synthetic prompts; means of its JSON report."""
    python = environment("guidellm", ["guidellm"])
    data = f"prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}"
    options = ["--target", task.url, "--profile", "concurrent", "--rate", str(task.users), "--max-seconds", f"{task.seconds:.0f}"]
    options += ["--data", data, "--processor", str(task.folder), "--model", task.model, "--request-type", "text_completions"]
    options += ["--output-path", str(task.out / "report.json"), "--disable-console"]
    _run([str(python), "-m", "guidellm", "benchmark", "run", *options], task)
    metrics = json.loads((task.out / "report.json").read_text(encoding="utf-8"))["benchmarks"][0]["metrics"]

    def mean(name: str) -> float:
        return float(metrics[name]["successful"]["mean"])

    return Report(mean("time_to_first_token_ms") / 1e3, mean("inter_token_latency_ms") / 1e3, mean("output_tokens_per_second"))


def run_aiperf(task: Task) -> Report:
    """AIPerf on synthetic prompts; averages of its JSON export."""
    python = environment("aiperf", ["aiperf"])
    requests = max(round(task.seconds * task.users / 2), 8)
    options = ["-m", task.model, "--url", task.url, "--endpoint-type", "completions", "--streaming", "--ui", "none"]
    options += ["--concurrency", str(task.users), "--request-count", str(requests), "--tokenizer", str(task.folder)]
    options += ["--synthetic-input-tokens-mean", str(PROMPT_TOKENS), "--output-tokens-mean", str(OUTPUT_TOKENS)]
    options += ["--extra-inputs", "ignore_eos:true", "--artifact-dir", str(task.out)]
    _run([str(python.with_name("aiperf")), "profile", *options], task)
    found = next(iter(sorted(task.out.rglob("profile_export_aiperf.json"))), None)
    if found is None:
        raise PeerUnavailable("aiperf wrote no profile_export_aiperf.json")
    values = json.loads(found.read_text(encoding="utf-8"))
    metrics = values.get("metrics", values)

    def average(name: str) -> float:
        return float(metrics[name]["avg"])

    return Report(average("time_to_first_token") / 1e3, average("inter_token_latency") / 1e3, average("output_token_throughput"))


CLIENTS: dict[str, Callable[[Task], Report]] = {"locust": run_locust, "guidellm": run_guidellm, "aiperf": run_aiperf}


class Dashboard:
    """What the dashboard says between two moments, sampled while it runs."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._stop = threading.Event()
        self._samples: list[tuple[float, float]] = []
        self._before = self._page()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _page(self) -> str:
        with urllib.request.urlopen(self.url + "/metrics", timeout=20) as answer:
            return str(answer.read().decode())

    def _run(self) -> None:
        while not self._stop.is_set():
            text = self._page()
            self._samples.append((time.perf_counter(), _raw(text, "vllm:generation_tokens_total")))
            self._stop.wait(SAMPLE_S)

    def report(self) -> Report:
        """Means and throughput since this object was made."""
        self._stop.set()
        self._thread.join(30)
        after = self._page()

        def mean(name: str) -> float:
            total = _raw(after, name + "_sum") - _raw(self._before, name + "_sum")
            return total / max(_raw(after, name + "_count") - _raw(self._before, name + "_count"), 1.0)

        first, last = self._samples[0][1], self._samples[-1][1]
        begun = max((t for t, n in self._samples if n == first), default=0.0)
        ended = min((t for t, n in self._samples if n == last), default=begun)
        rate = (last - first) / (ended - begun) if ended > begun else 0.0
        return Report(mean("vllm:time_to_first_token_seconds"), mean("vllm:inter_token_latency_seconds"), rate)


def _raw(text: str, name: str) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith((name + "{", name + " ")))


def _served_model(url: str) -> str:
    with urllib.request.urlopen(url + "/v1/models", timeout=20) as answer:
        return str(json.load(answer)["data"][0]["id"])


def _warm_up(url: str, model: str) -> None:
    """One answer, so that nobody's first token pays for a compilation."""
    body = {"model": model, "prompt": [5] * PROMPT_TOKENS, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        answer.read()


def _compare(client: Report, ours: Report) -> list[tuple[str, float, float, float]]:
    """(figure, client, dashboard, client / dashboard - 1)."""
    pairs = [
        ("TTFT mean, ms", 1e3 * client.ttft_s, 1e3 * ours.ttft_s),
        ("ITL mean, ms", 1e3 * client.itl_s, 1e3 * ours.itl_s),
        ("output tokens/s", client.tokens_per_s, ours.tokens_per_s),
    ]
    return [(name, a, b, a / b - 1 if b else float("inf")) for name, a, b in pairs]


def main(argv: list[str]) -> int:
    """Run each client; 1 if a figure is off by more than 5 %, or if none could be run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks clients", description=__doc__)
    parser.add_argument("--only", default=",".join(CLIENTS), help=f"comma-separated: {', '.join(CLIENTS)}")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--model", default="smollm2")
    args = parser.parse_args(argv)
    wanted = [name for name in args.only.split(",") if name]
    unknown = sorted(set(wanted) - set(CLIENTS))
    if unknown:
        parser.error(f"unknown client {', '.join(unknown)}; known: {', '.join(CLIENTS)}")
    folder = export_folder(args.model, user_cache_path("batchscope") / "peers" / f"model-{Path(args.model).name}")
    export_tokenizer(args.model, folder)
    rows: list[list[object]] = []
    missing: dict[str, str] = {}
    errors: dict[str, dict[str, float]] = {}
    with (
        tempfile.TemporaryDirectory() as scratch,
        served(Path(scratch), BATCHSCOPE_RATE="0", BATCHSCOPE_MODEL=args.model) as ours,
    ):
        model = _served_model(ours.url)
        _warm_up(ours.url, model)
        for name in wanted:
            out = Path(scratch) / name
            out.mkdir()
            watched = Dashboard(ours.url)
            try:
                client = CLIENTS[name](Task(ours.url, model, folder, out, args.seconds, args.users))
            except (PeerUnavailable, KeyError, ValueError, OSError) as reason:
                watched.report()
                missing[name] = f"{type(reason).__name__}: {reason}" if not isinstance(reason, PeerUnavailable) else str(reason)
                continue
            found = _compare(client, watched.report())
            rows += [[f"{name}: {figure}", a, b, f"{100 * off:+.1f} %"] for figure, a, b, off in found]
            errors[name] = {figure: off for figure, _, _, off in found}
    print_table(["client", "its report", "dashboard", "difference"], rows)
    for name, reason in missing.items():
        print(f"{name}: missing, {reason}")
    worst = max((abs(off) for one in errors.values() for off in one.values()), default=None)
    print_json_line(
        {"benchmark": "clients", "worst_difference": worst, "differences": errors, "missing": missing, "users": args.users}
    )
    return 0 if worst is not None and worst <= AGREE_WITHIN else 1
