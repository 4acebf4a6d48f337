"""Greedy tokens and logits equal the reference library's on tiny random checkpoints of every supported family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from core.clock import StepClock
from core.config import CacheConfig, EngineConfig
from core.errors import CheckpointError
from core.model_spec import ModelSpec
from core.runtime.backend import StepBatch
from core.runtime.loader import create_runner
from core.runtime.model_runner import ModelRunner
from tests.runtime_driver import Driver, prompts_of

BASE: dict[str, Any] = {
    "vocab_size": 199, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "rope_theta": 10_000.0,
    "initializer_range": 0.2, "attn_implementation": "eager",
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32, "rope_theta": 10_000.0}  # fmt: skip
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-untied-gqa": ("Llama", {"tie_word_embeddings": False}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-mha": ("Llama", {"num_key_value_heads": 6}),
    "llama-mqa": ("Llama", {"num_key_value_heads": 1}),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}}),
    "llama-llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-theta": ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "rms_norm_eps": 1e-3}),
    "llama-head-dim": ("Llama", {"head_dim": 20}),
    "llama-bias": ("Llama", {"attention_bias": True}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 8}),
    "mistral-window": ("Mistral", {"sliding_window": 9, "head_dim": 8}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-untied": ("Qwen2", {}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3-tied-bias": ("Qwen3", {"head_dim": 8, "tie_word_embeddings": True, "attention_bias": True}),
}
PROMPTS = prompts_of((1, 7, 23, 12), vocab_size=199)
NUM_TOKENS = 40


def reference_model(family: str, changes: dict[str, Any]) -> Any:
    torch.manual_seed(3)
    config = getattr(transformers, f"{family}Config")(**{**BASE, **changes})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # biases and norms start neutral; give them something to get wrong
            if name.endswith("bias") or "norm" in name:
                parameter.add_(0.3 * torch.randn(parameter.shape))
    return model


@torch.inference_mode()
def reference_choice(model: Any, prompt: list[int], output: list[int]) -> list[int]:
    """The reference's greedy token after each prefix of prompt + output.

    It equals `output` exactly if the reference, left alone, would have generated `output`: if the first n tokens agree,
    the next is chosen after the same text.
    """
    logits = model(torch.tensor([[*prompt, *output]]), use_cache=False).logits[0]
    return logits[len(prompt) - 1 : -1].argmax(dim=-1).tolist()


def our_runner(folder: Path, dtype: str = "float32") -> ModelRunner:
    config = EngineConfig(model=str(folder), dtype=dtype, device="cpu", cache=CacheConfig(block_size=4, num_blocks=80))
    return create_runner(config, StepClock(), backend="plain")


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    family, changes = VARIANTS[request.param]
    model = reference_model(family, changes)
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return model, folder


def test_greedy_tokens_equal_the_reference(pair: tuple[Any, Path]) -> None:
    model, folder = pair
    driver = Driver(our_runner(folder))
    for index, prompt in enumerate(PROMPTS):
        driver.add(str(index), prompt)
    outputs = list(driver.run(NUM_TOKENS, chunk=6).values())
    assert len({tuple(o) for o in outputs}) == len(PROMPTS)
    assert outputs == [reference_choice(model, p, o) for p, o in zip(PROMPTS, outputs, strict=True)]


def logits_of(folder: Path, prompt: list[int]) -> torch.Tensor:
    """Logits at every position of a prompt that is run whole."""
    seen: list[torch.Tensor] = []
    runner = our_runner(folder)
    forward = runner._model.forward

    def all_logits(batch: StepBatch) -> torch.Tensor:
        batch.logits_indices = torch.arange(batch.num_tokens).numpy()
        seen.append(forward(batch))
        return seen[0][-1:]

    runner._model.forward = all_logits  # type: ignore[method-assign]
    driver = Driver(runner)
    driver.add("a", prompt)
    driver.step({"a": len(prompt)})
    return seen[0]


def test_logits_equal_the_reference(pair: tuple[Any, Path]) -> None:
    model, folder = pair
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPTS[2]])).logits[0]
    torch.testing.assert_close(logits_of(folder, PROMPTS[2]), expected, rtol=2e-4, atol=2e-4)


def test_sharded_checkpoint_equals_the_single_file(tmp_path: Path) -> None:
    model = reference_model("Llama", {})
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    assert torch.equal(logits_of(tmp_path / "one", PROMPTS[1]), logits_of(tmp_path / "many", PROMPTS[1]))


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_silent_settings_take_the_reference_defaults(family: str) -> None:
    """A config.json that says only the sizes gives the geometry that the reference library would build."""
    config = getattr(transformers, f"{family}Config")()
    sizes = {k: getattr(config, k) for k in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")}
    spec = ModelSpec.from_hf_config({"model_type": family.lower(), "intermediate_size": config.intermediate_size, **sizes})
    assert spec.tie_word_embeddings is config.tie_word_embeddings
    assert spec.num_kv_heads == config.num_key_value_heads
    assert spec.head_dim == (getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    assert spec.max_model_len == config.max_position_embeddings
    assert spec.rms_norm_eps == config.rms_norm_eps
    assert spec.rope_theta == config.rope_parameters["rope_theta"]
    assert spec.sliding_window == config.sliding_window if hasattr(config, "sliding_window") else spec.sliding_window is None


def test_old_and_new_spelling_of_rope_settings_agree(tmp_path: Path) -> None:
    model = reference_model("Llama", VARIANTS["llama-llama3"][1])
    model.save_pretrained(tmp_path)
    new = logits_of(tmp_path, PROMPTS[2])
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    path.write_text(json.dumps(config))
    assert torch.equal(logits_of(tmp_path, PROMPTS[2]), new)


@pytest.mark.parametrize(("change", "words"), [
    ({"model_type": "gpt2"}, ["config.json", "gpt2", "llama", "qwen3"]),
    ({"model_type": "mixtral", "num_local_experts": 4}, ["mixtral", "predictions"]),
    ({"hidden_act": "gelu"}, ["hidden_act", "gelu", "silu"]),
    ({"mlp_bias": True}, ["mlp_bias"]),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, ["yarn", "llama3"]),
    ({"quantization_config": {"quant_method": "gptq"}}, ["quantization_config", "gptq"]),
    ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor", "0.5"]),
    ({"num_key_value_heads": 4}, ["multiple"]),
    ({"hidden_size": 60}, ["shape", "[199, 48]", "[199, 60]"]),
    ({"num_hidden_layers": 4}, ["lacks 9 of", "model.layers.3."]),
    ({"num_hidden_layers": 2}, ["holds 9 tensors", "model.layers.2."]),
    ({"tie_word_embeddings": False}, ["lm_head.weight", "tie_word_embeddings"]),
])  # fmt: skip
def test_a_checkpoint_that_does_not_fit_is_refused_by_name(tmp_path: Path, change: dict[str, Any], words: list[str]) -> None:
    reference_model("Llama", {"tie_word_embeddings": True}).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CheckpointError) as caught:
        our_runner(tmp_path)
    for word in (str(tmp_path), *words):
        assert word in str(caught.value)
