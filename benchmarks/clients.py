"""Other people's load generators against the dashboard: does what they report agree with what the dashboard says?

    python -m benchmarks clients [--only locust,guidellm,vllm-bench] [--requests 48] [--users 4] [--model smollm2]

Each comes from PyPI into an environment of its own (see `benchmarks.peers`) and drives the dashboard, which runs idle
in a process of its own. Both sides speak of the same requests: the dashboard's figures are made of its records of
exactly those that the tool sent, TTFT and ITL as means over requests and gaps,

    output tokens/s = output tokens / (last token - first arrival)

and its metrics page must have grown by the same counts and sums. A tool that cannot be installed or run is named with
its reason.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from benchmarks.client_tools import TOOLS, Report, Task
from benchmarks.dashboard_server import serving
from benchmarks.export import export_folder, export_tokenizer
from benchmarks.peers import PeerUnavailable
from benchmarks.report import print_json_line, print_table
from core.attach.page import parse_page

AGREE_WITHIN = 0.05
START_LIMIT_S, END_LIMIT_S = 240.0, 60.0


def of_records(records: Sequence[Mapping[str, Any]]) -> Report:
    """What the dashboard says of these requests.

    Args:
        records: `core.records.RequestRecord` as mappings, in any order.

    Raises:
        ValueError: if there is none, or none that got a token.
    """
    firsts = [r["ttft_s"] for r in records if r["ttft_s"] is not None]
    gaps = [gap for r in records for gap in r["itl_s"]]
    if not firsts:
        raise ValueError(f"{len(records)} requests reached the dashboard and none of them got a token")
    span_s = max(r["finished_s"] for r in records) - min(r["arrival_s"] for r in records)
    tokens = sum(r["output_tokens"] for r in records)
    return Report(
        len(records),
        tokens,
        math.fsum(firsts) / len(firsts),
        math.fsum(gaps) / len(gaps) if gaps else 0.0,
        tokens / span_s if span_s > 0 else 0.0,
    )


def differences(tool: Report, ours: Report) -> list[tuple[str, float, float, float]]:
    """(figure, of the tool, of the dashboard, tool / dashboard - 1); counts first."""
    pairs = [
        ("requests", tool.requests, ours.requests),
        ("output tokens", tool.output_tokens, ours.output_tokens),
        ("TTFT mean, ms", 1e3 * tool.ttft_s, 1e3 * ours.ttft_s),
        ("ITL mean, ms", 1e3 * tool.itl_s, 1e3 * ours.itl_s),
        ("output tokens/s", tool.tokens_per_s, ours.tokens_per_s),
    ]
    return [(name, a, b, a / b - 1 if b else math.inf) for name, a, b in pairs]


def agree(found: Sequence[tuple[str, float, float, float]]) -> bool:
    """Counts equal, figures within `AGREE_WITHIN`."""
    return all(off == 0 if name in ("requests", "output tokens") else abs(off) <= AGREE_WITHIN for name, _, _, off in found)


def page_agrees(before: str, after: str, ours: Report) -> bool:
    """True if the metrics page grew by the counts and sums of the records."""
    earlier, later = parse_page(before), parse_page(after)
    tokens = later.counters["generation_tokens"] - earlier.counters["generation_tokens"]
    ttft = later.histograms["ttft"].minus(earlier.histograms.get("ttft"))
    itl = later.histograms["itl"].minus(earlier.histograms.get("itl"))
    return (
        tokens == ours.output_tokens
        and ttft.count == ours.requests
        and itl.count == ours.output_tokens - ours.requests
        and math.isclose(ttft.total, ours.ttft_s * ttft.count, rel_tol=1e-6)
        and math.isclose(itl.total, ours.itl_s * itl.count, rel_tol=1e-6)
    )


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def _records(url: str) -> list[dict[str, Any]]:
    """All records once nothing is live, oldest first."""
    end_s = time.monotonic() + END_LIMIT_S
    while True:
        values = json.loads(_get(url + "/records"))
        if not values["live"]:
            return list(reversed(values["records"]))
        if time.monotonic() > end_s:
            raise ValueError(f"{values['live']} requests are still live {END_LIMIT_S:.0f} s after the tool's end")
        time.sleep(0.1)


def _served_model(url: str) -> str:
    """The name of the model once it is loaded."""
    end_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end_s:
        data = json.loads(_get(url + "/v1/models"))["data"]
        if data:
            return str(data[0]["id"])
        time.sleep(0.3)
    raise SystemExit(f"no model within {START_LIMIT_S:.0f} s of the start")


def _warm_up(url: str, task: Task) -> None:
    """A few answers, so that nobody's first token pays for a compilation."""
    body = {"model": task.model, "max_tokens": task.output_tokens, "ignore_eos": True}
    for k in range(3):
        text = json.dumps({**body, "prompt": [5 + k] * task.prompt_tokens})
        request = urllib.request.Request(url + "/v1/completions", text.encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            answer.read()


def compare_with(name: str, task: Task) -> tuple[list[tuple[str, float, float, float]], bool]:
    """Run one tool; (figures, whether the metrics page agrees with the records).

    Raises:
        PeerUnavailable: if it cannot be run or its report cannot be read.
    """
    seen = {(r["request_id"], r["finished_s"]) for r in _records(task.url)}
    before = _get(task.url + "/metrics")
    try:
        tool = TOOLS[name](task)
        records = [r for r in _records(task.url) if (r["request_id"], r["finished_s"]) not in seen]
        ours = of_records(records)
    except (KeyError, ValueError, OSError) as error:
        raise PeerUnavailable(f"{type(error).__name__}: {error}") from error
    return differences(tool, ours), page_agrees(before, _get(task.url + "/metrics"), ours)


def main(argv: list[str]) -> int:
    """Run each tool; 1 if a figure is off by more than 5 %, a count or the metrics page differs, or none could be run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks clients", description=__doc__)
    parser.add_argument("--only", default=",".join(TOOLS), help=f"comma-separated: {', '.join(TOOLS)}")
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--model", default="smollm2")
    args = parser.parse_args(argv)
    wanted = [name for name in args.only.split(",") if name]
    unknown = sorted(set(wanted) - set(TOOLS))
    if unknown:
        parser.error(f"unknown client {', '.join(unknown)}; known: {', '.join(TOOLS)}")
    folder = export_folder(args.model, user_cache_path("batchscope") / "peers" / f"model-{Path(args.model).name}")
    export_tokenizer(args.model, folder)
    missing: dict[str, str] = {}
    errors: dict[str, dict[str, float]] = {}
    good: dict[str, bool] = {}
    settings = {"BATCHSCOPE_RATE": "0", "BATCHSCOPE_MODEL": args.model}
    with tempfile.TemporaryDirectory() as scratch, serving("benchmarks.recorded_app:app", settings) as (url, _):
        model = _served_model(url)
        for name in wanted:
            out = Path(scratch, name)
            out.mkdir()
            task = Task(url, model, folder, out, args.requests, args.users, args.prompt_tokens, args.output_tokens)
            _warm_up(url, task)
            try:
                found, same_page = compare_with(name, task)
            except PeerUnavailable as reason:
                missing[name] = str(reason)
                print(f"{name}: missing, {reason}", flush=True)
                continue
            rows: list[list[object]] = [[figure, a, b, f"{100 * off:+.1f} %"] for figure, a, b, off in found]
            rows.append(["metrics page", "", "as the records" if same_page else "DIFFERS", ""])
            print_table([name, "its report", "dashboard", "difference"], rows)
            errors[name] = {figure: off for figure, _, _, off in found}
            good[name] = agree(found) and same_page
    line = {
        "benchmark": "clients", "agree": good, "differences": errors, "missing": missing, "requests": args.requests,
        "users": args.users, "prompt_tokens": args.prompt_tokens, "output_tokens": args.output_tokens,
        "model": args.model, "threads": os.cpu_count(),
    }  # fmt: skip
    print_json_line(line)
    return 0 if good and all(good.values()) else 1
