"""Seconds from FLOPs and bytes, the batch ceiling, and published figures."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from core.cost_model import CostModel, StepComposition
from core.devices import DEVICE_PRESETS, DEVICES, DeviceSpec, custom_device, device_named
from core.errors import ConfigError
from core.memory_plan import plan_memory, weight_memory_bytes
from core.model_spec import TINY, ModelSpec
from core.models_catalog import CATALOG, MODELS, model_named, spec_from_config_json
from core.roofline import (
    ATTAINABLE,
    Efficiency,
    decode_curve,
    intensity_ceiling,
    marginal_cost_s,
    model_time,
    ridge_batch,
    roofline_time,
)

H100 = DEVICES["H100 SXM"]
A100 = DEVICES["A100 80 GB SXM"]
LLAMA = model_named("Llama 3.1 8B")
LLAMA2_7B = ModelSpec(
    name="Llama 2 7B", vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_layers=32, num_heads=32,
    num_kv_heads=32, head_dim=128, max_model_len=4096, source="meta-llama/Llama-2-7b-hf config.json",
)  # fmt: skip


@pytest.mark.parametrize("entry", CATALOG, ids=lambda e: e.name)
def test_parameter_counts_equal_the_published_ones(entry) -> None:
    assert entry.spec.num_parameters == entry.published_parameters
    assert entry.repo in entry.spec.source


@pytest.mark.parametrize(
    ("name", "kib"),
    [
        ("Llama 3.1 8B", 128), ("Llama 3.1 70B", 320), ("Mistral 7B v0.3", 128), ("Mixtral 8x7B", 128), ("Qwen2.5 7B", 56),
        ("Qwen2.5 72B", 320), ("Qwen3 8B", 144), ("Qwen3 30B-A3B", 96), ("SmolLM2 135M", 22.5), ("SmolLM2 1.7B", 192),
    ],
)  # fmt: skip
def test_kv_bytes_of_a_token(name: str, kib: float) -> None:
    """Widely published: 128 KiB a token for Llama 3.1 8B, 320 KiB for 70B (2 * layers * KV heads * head size * 2 bytes)."""
    assert model_named(name).kv_bytes_per_token("bfloat16") == kib * 1024


def test_ridge_points() -> None:
    """206 FLOP/B on an H200, 295 on an H100 SXM, 153 on an A100 80 GB SXM: dense 16-bit peak over bandwidth."""
    ridges = {device.name: device.ridge_point for device in DEVICE_PRESETS}
    assert ridges["H200 SXM"] == pytest.approx(206, abs=0.5)
    assert ridges["H100 SXM"] == pytest.approx(295, abs=0.5)
    assert ridges["A100 80 GB SXM"] == pytest.approx(153, abs=0.5)
    assert all(device.source for device in DEVICE_PRESETS)


def decode_ms(spec: ModelSpec, device, contexts: tuple[int, ...], tp: int = 1, weight_dtype: str = "bfloat16") -> float:
    model = CostModel.of(spec, tensor_parallel=tp, weight_dtype=weight_dtype, head_dtype="bfloat16")
    cost = model.cost(StepComposition.decode(contexts))
    return model_time(model, device, cost, ATTAINABLE).total_s * 1e3


def test_a_lone_decode_step_of_a_7b_model_on_an_a100() -> None:
    """gpt-fast's README: Llama 2 7B in 16 bit at 104.9 tokens/s (9.53 ms) on an A100 80 GB limited to 330 W.

    Its authors see about 1,700 GB/s at best there, below the 1,826 assumed here, and host time is left out:
    the prediction must be a little faster, by no more than a quarter.
    """
    assert 0.75 * 9.53 < decode_ms(LLAMA2_7B, A100, (100,)) < 9.53
    assert 0.55 * 1e3 / 155.58 < decode_ms(LLAMA2_7B, A100, (100,), weight_dtype="int8") < 1e3 / 155.58


def test_tensor_parallel_decode_steps_on_a100s() -> None:
    """gpt-fast's README: Llama 2 7B on 2, 4, 8 A100s at 168.84, 254.02, 328.43 tokens/s; each step of the group must be
    faster than the one before, never faster than half of what was measured, never slower."""
    measured = {1: 9.53, 2: 1e3 / 168.84, 4: 1e3 / 254.02, 8: 1e3 / 328.43}
    predicted = {tp: decode_ms(LLAMA2_7B, A100, (100,), tp) for tp in measured}
    assert sorted(predicted.values(), reverse=True) == list(predicted.values())
    for tp, ms in measured.items():
        assert 0.5 * ms < predicted[tp] < ms


def test_a_decode_step_of_an_8b_model_on_an_h100() -> None:
    """sgl-project/sglang issue 1268: Llama 3.1 8B on an H100 SXM at one request/s (about one running): median ITL 4.99 ms;
    at two a second (two running) 5.37 ms. The prediction must lie within 15 % of both."""
    assert decode_ms(LLAMA, H100, (350,)) == pytest.approx(4.99, rel=0.15)
    assert decode_ms(LLAMA, H100, (350, 350)) == pytest.approx(5.37, rel=0.15)


def test_batch_ceiling_and_stacked_memory() -> None:
    """By hand: 0.9 * 80 GB - 16.06 GB of weights = 55.9 GB, at 131,072 bytes a token about 426 thousand tokens, less what
    the activations of 8,192 tokens and the logits of 128 seats take (0.7 GB)."""
    plan = plan_memory(LLAMA, H100, tokens_per_request=2048, gpu_memory_utilization=0.9, max_num_batched_tokens=8192)
    assert sum(size for _, size in plan.parts()) == pytest.approx(80e9)
    assert plan.weights_bytes == 2 * 8_030_261_248
    assert plan.num_blocks * 16 == pytest.approx(426_000 - 0.7e9 / 131_072, rel=0.005)
    assert plan.batch_ceiling == plan.num_blocks // 128
    assert 0 <= plan.rest_bytes < 16 * plan.kv_bytes_per_token
    int4 = plan_memory(LLAMA, H100, tokens_per_request=2048, weight_dtype="int4", head_dtype="bfloat16", kv_dtype="fp8")
    assert int4.batch_ceiling > 2 * plan.batch_ceiling


def test_a_model_that_does_not_fit_says_what_would() -> None:
    with pytest.raises(ConfigError, match=r"weights 141\.1 GB .* of 73\.6 GB"):
        plan_memory(model_named("Llama 3.1 70B"), H100, tokens_per_request=2048)
    assert plan_memory(model_named("Llama 3.1 70B"), H100, tokens_per_request=2048, tensor_parallel=4).batch_ceiling > 10
    with pytest.raises(ConfigError, match="gpu_memory_utilization"):
        plan_memory(LLAMA, H100, tokens_per_request=1, gpu_memory_utilization=1.5)


def test_quantised_checkpoints_have_their_published_size() -> None:
    """hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4 is 5.7 GB: 4-bit layers, 16-bit head and embedding."""
    assert weight_memory_bytes(LLAMA, "int4", "bfloat16") == pytest.approx(5.73e9, rel=0.02)


def test_the_decode_curve_is_flat_then_linear() -> None:
    model = CostModel.of(LLAMA)
    points = decode_curve(model, H100, 32, range(1, 600))
    assert points[0].marginal_s == points[0].time_s
    assert points[8].marginal_s < 0.01 * points[0].time_s  # the ninth costs almost nothing
    assert points[-1].marginal_s > 5 * points[8].marginal_s  # beyond the ridge each costs its arithmetic
    assert all(a.time_s < b.time_s and b.tokens_per_s > a.tokens_per_s * (1 - 1e-9) for a, b in pairwise(points))
    crossing = next(p.batch for p in points if p.compute_s > p.memory_s)
    assert crossing == ridge_batch(model, H100, 32)
    nine = marginal_cost_s(model, H100, (32,) * 8, 32)
    assert nine == pytest.approx(points[8].marginal_s)


def test_intensity_ends_at_a_ceiling_set_by_context() -> None:
    model = CostModel.of(LLAMA)
    for context in (128, 1024, 8192):
        ceiling = intensity_ceiling(model, context)
        points = decode_curve(model, H100, context, (1, 64, 4096, 1_000_000))
        assert points[0].intensity < points[1].intensity < points[2].intensity < ceiling
        assert points[3].intensity == pytest.approx(ceiling, rel=0.01)
        assert points[1].weights_intensity > points[1].intensity
    assert ridge_batch(model, H100, 8192) is None  # KV traffic keeps long contexts under the ridge for ever


def test_roofline_parts() -> None:
    device = custom_device("x", peak_tflops=1, bandwidth_gb_s=100, memory_gb=1, host_gb_s=10, step_overhead_s=0.5)
    model = CostModel.of(TINY)
    cost = model.cost(StepComposition((4,), (0,), (True,), swap_bytes=1e9))
    time = roofline_time(cost, device)
    assert time.compute_s == pytest.approx(cost.flops / 1e12)
    assert time.memory_s == pytest.approx(cost.device_bytes / 100e9)
    assert time.swap_s == pytest.approx(0.1)
    assert time.total_s == pytest.approx(max(time.compute_s, time.memory_s) + 0.1 + 0.5)
    assert time.bound == "memory"
    slower = roofline_time(cost, device, efficiency=Efficiency(0.5, 0.25))
    assert slower.memory_s == pytest.approx(4 * time.memory_s)
    assert roofline_time(model.cost(StepComposition()), device).total_s == 0.0
    group = CostModel.of(TINY, tensor_parallel=2)
    cost = group.cost(StepComposition.prefill(4))
    with pytest.raises(ConfigError, match="link bandwidth"):
        model_time(group, device, cost)
    with pytest.raises(ConfigError, match="efficiency"):
        Efficiency(compute=1.2)


def test_a_small_model_is_priced_at_the_bandwidth_of_the_cache() -> None:
    device = DeviceSpec("c", 1e12, 10e9, 1e9, cache_bandwidth=100e9, cache_bytes=1e6)
    cost = CostModel.of(TINY).cost(StepComposition.decode((10,)))
    assert roofline_time(cost, device).memory_s == pytest.approx(cost.device_bytes / 100e9)


def test_devices_by_name_and_by_hand() -> None:
    assert device_named("L4").memory_bytes == 24e9
    with pytest.raises(ConfigError, match=r"'B900'.*H100 SXM"):
        device_named("B900")
    with pytest.raises(ConfigError, match="memory_bandwidth"):
        custom_device("x", peak_tflops=1, bandwidth_gb_s=0, memory_gb=1)
    with pytest.raises(ConfigError, match="peak_flops"):
        custom_device("x", peak_tflops=float("nan"), bandwidth_gb_s=1, memory_gb=1)


def test_pasted_configuration() -> None:
    entry = next(e for e in CATALOG if e.name == "Qwen3 30B-A3B")
    text = "\ufeff" + json.dumps(entry.config)
    assert spec_from_config_json(text, "mine").num_parameters == entry.published_parameters
    assert spec_from_config_json(json.dumps({"text_config": entry.config})).num_experts == 128
    with pytest.raises(ConfigError, match="line 2 column"):
        spec_from_config_json('{"a": 1,\n oops}')
    with pytest.raises(ConfigError, match="one object"):
        spec_from_config_json("[1]")
    with pytest.raises(ConfigError, match="lacks hidden_size"):
        spec_from_config_json('{"model_type": "llama", "vocab_size": 5, "num_hidden_layers": 1, "num_attention_heads": 1}')
    with pytest.raises(ConfigError, match=r"wrong kind|whole number"):
        spec_from_config_json(json.dumps({**entry.config, "hidden_size": [1]}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_scaling": "yarn"}, "rope_scaling of mine is 'yarn'; give an object"),
        ({"intermediate_size": 2.5}, "intermediate_size of mine is 2.5; give a whole number"),
        ({"vocab_size": True}, "vocab_size of mine is True; give a whole number"),
        ({"hidden_size": 10**30}, "a whole number from 1 to 1000000000"),
        ({"hidden_size": float("inf")}, "give a whole number"),
    ],
)
def test_a_hostile_config_json_names_its_field(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_from_config_json(json.dumps({**model_config(), **change}), "mine")


def test_a_config_json_without_end_is_refused_and_one_with_another_rope_is_priced() -> None:
    for text in ('{"a":' * 100_000, '{"hidden_size": 1' + "0" * 5000 + "}"):
        with pytest.raises(ConfigError, match="cannot be read"):
            spec_from_config_json(text)
    lacking = {k: v for k, v in model_config().items() if k != "intermediate_size"}
    with pytest.raises(ConfigError, match="lacks intermediate_size"):
        spec_from_config_json(json.dumps(lacking))
    plain = spec_from_config_json(json.dumps(model_config()))
    assert spec_from_config_json(json.dumps(model_config() | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}})) == plain


def model_config() -> dict[str, object]:
    return dict(MODELS["Qwen2.5 0.5B"].config)


def test_every_preset_says_where_its_figures_are_from() -> None:
    for device in DEVICE_PRESETS:
        assert "datasheet" in device.source or "paper" in device.source, device.name
        peak = f"{device.peak_flops / 1e12:g}"
        assert peak in device.source.replace(",", "").replace("165.2", "165"), f"{device.name}: {peak} is not in its source"
    for entry in CATALOG:
        assert entry.spec.source == f"{entry.repo} config.json"
        assert entry.spec.num_parameters == entry.published_parameters
