"""Configurations as commands of real servers: exact flags, and a note for each knob that has none."""

from __future__ import annotations

import dataclasses
import shlex

import pytest

from core.config import (
    AdmissionMoment,
    AdmissionPolicy,
    BatchPolicy,
    CacheConfig,
    EngineConfig,
    EvictionPolicy,
    PreemptionMode,
    QueuePolicy,
    SchedulerConfig,
    TenantConfig,
    VictimPolicy,
)
from core.vllm_flags import ServerCommand, sglang_command, vllm_command


def flags(command: ServerCommand) -> dict[str, str]:
    found: dict[str, str] = {}
    for at, word in enumerate(command.argv):
        if word.startswith("--"):
            following = command.argv[at + 1] if at + 1 < len(command.argv) else "--"
            found[word] = "" if following.startswith("--") else following
    return found


CONFIG = EngineConfig(
    model="Llama 3.1 8B", max_model_len=8192, seed=7,
    scheduler=SchedulerConfig(max_num_seqs=96, max_num_batched_tokens=4096, long_prefill_token_threshold=1024),
    cache=CacheConfig(block_size=32, num_blocks=9000),
)  # fmt: skip


def test_vllm() -> None:
    command = vllm_command(CONFIG, tensor_parallel=2, kv_dtype="fp8")
    assert command.argv[:3] == ("vllm", "serve", "meta-llama/Llama-3.1-8B-Instruct")
    assert flags(command) == {
        "--dtype": "bfloat16", "--kv-cache-dtype": "fp8", "--max-model-len": "8192", "--tensor-parallel-size": "2", "--seed": "7",
        "--max-num-seqs": "96", "--max-num-batched-tokens": "4096", "--enable-chunked-prefill": "",
        "--long-prefill-token-threshold": "1024", "--scheduling-policy": "fcfs", "--block-size": "32",
        "--num-gpu-blocks-override": "9000", "--enable-prefix-caching": "",
    }  # fmt: skip
    assert [knob for knob, _ in command.notes] == ["max_waiting"]


def test_sglang() -> None:
    command = sglang_command(CONFIG, tensor_parallel=2, kv_dtype="fp8", gpu_memory_utilization=0.85)
    assert command.argv[:3] == ("python", "-m", "sglang.launch_server")
    assert flags(command) == {
        "--model-path": "meta-llama/Llama-3.1-8B-Instruct", "--dtype": "bfloat16", "--kv-cache-dtype": "fp8_e4m3",
        "--context-length": "8192", "--tp-size": "2", "--random-seed": "7", "--max-running-requests": "96",
        "--max-queued-requests": "20000", "--chunked-prefill-size": "1024", "--max-prefill-tokens": "4096",
        "--enable-mixed-chunk": "", "--schedule-policy": "fcfs", "--page-size": "32", "--mem-fraction-static": "0.85",
        "--radix-eviction-policy": "lru",
    }  # fmt: skip
    assert {"max_num_batched_tokens", "gpu_memory_utilization"} <= {knob for knob, _ in command.notes}


def test_the_text_is_a_shell_command() -> None:
    command = vllm_command(dataclasses.replace(CONFIG, model="my models/a model"))
    assert shlex.split(command.text.replace("\\\n", " ")) == list(command.argv)
    assert command.text.count("\n") == sum(word.startswith("--") for word in command.argv)


ODD = {
    "lookahead": SchedulerConfig(lookahead=3),
    "priority_ageing_s": SchedulerConfig(priority_ageing_s=5.0),
    "predicted_output_tokens": SchedulerConfig(predicted_output_tokens=9),
    "tenants": SchedulerConfig(tenants=(TenantConfig("a"),)),
    "admission_moment": SchedulerConfig(admission_moment=AdmissionMoment.BETWEEN_LAUNCHES),
    "preemption_mode": SchedulerConfig(preemption_mode=PreemptionMode.SWAP),
    "victim_policy": SchedulerConfig(victim_policy=VictimPolicy.MOST_BLOCKS_FREED),
    "queue_policy": SchedulerConfig(queue_policy=QueuePolicy.WEIGHTED_FAIR),
    "batch_policy": SchedulerConfig(batch_policy=BatchPolicy.FIXED),
    "admission_policy": SchedulerConfig(admission_policy=AdmissionPolicy.RESERVE),
}


@pytest.mark.parametrize("knob", ODD)
@pytest.mark.parametrize("make", [vllm_command, sglang_command])
def test_a_knob_without_counterpart_has_a_note(knob: str, make) -> None:
    cache = CacheConfig(num_swap_blocks=8)
    notes = dict(make(EngineConfig(scheduler=ODD[knob], cache=cache)).notes)
    assert notes[knob]
    assert "num_swap_blocks" in notes


def test_policies() -> None:
    def vllm(**knobs) -> dict[str, str]:
        return flags(vllm_command(EngineConfig(scheduler=SchedulerConfig(**knobs))))

    def sglang(**knobs) -> dict[str, str]:
        return flags(sglang_command(EngineConfig(scheduler=SchedulerConfig(**knobs))))

    assert vllm(queue_policy=QueuePolicy.PRIORITY)["--scheduling-policy"] == "priority"
    assert "--no-enable-chunked-prefill" in vllm(enable_chunked_prefill=False)
    assert "--no-enable-chunked-prefill" in vllm(batch_policy=BatchPolicy.WHOLE_PROMPTS)
    assert vllm(admission_policy=AdmissionPolicy.WATERMARK, watermark=0.05)["--watermark"] == "0.05"
    assert "--schedule-low-priority-values-first" in sglang(queue_policy=QueuePolicy.PRIORITY)
    assert "--disable-priority-preemption" in sglang(queue_policy=QueuePolicy.PRIORITY, preemptive_priority=False)
    assert sglang(queue_policy=QueuePolicy.LONGEST_PREFIX)["--schedule-policy"] == "lpm"
    assert sglang(batch_policy=BatchPolicy.SEPARATE)["--chunked-prefill-size"] == "-1"
    no_cache = EngineConfig(cache=CacheConfig(enable_prefix_caching=False, eviction_policy=EvictionPolicy.LFU))
    assert "--no-enable-prefix-caching" in flags(vllm_command(no_cache))
    assert "--disable-radix-cache" in flags(sglang_command(no_cache))
    assert flags(sglang_command(no_cache))["--radix-eviction-policy"] == "lfu"


def test_models_that_no_server_has() -> None:
    assert "seeded weights" in dict(vllm_command(EngineConfig(model="tiny")).notes)["model"]
    assert vllm_command(EngineConfig()).argv[2] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert "weight_dtype" in dict(sglang_command(EngineConfig(weight_dtype="int8")).notes)
