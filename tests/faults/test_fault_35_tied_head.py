"""Kind: tied output head. Rule: tie_word_embeddings decides; absent means untied, as in the reference library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

from core.errors import CheckpointError
from core.runtime.backend import LinearWeight
from core.runtime.checkpoint_names import HEAD
from core.runtime.hf_folder import FolderSource
from tests.runtime_driver import one_thread

__all__ = ["one_thread"]  # the fixture


def checkpoint(folder: Path, tied: bool) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, tie_word_embeddings=tied, initializer_range=0.3,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    return model


def head_and_embedding(folder: Path) -> tuple[LinearWeight, torch.Tensor]:
    weights = FolderSource(folder).weights(torch.float32, torch.device("cpu"), 64)
    return weights.head, weights.embedding


def change_setting(folder: Path, value: bool | None) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.pop("tie_word_embeddings", None)
    if value is not None:
        config["tie_word_embeddings"] = value
    path.write_text(json.dumps(config))


def drop_head(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    del tensors[HEAD]
    safetensors.torch.save_file(tensors, path, {"format": "pt"})


def test_tied_without_head(tmp_path: Path) -> None:
    model = checkpoint(tmp_path, tied=True)
    head, embedding = head_and_embedding(tmp_path)
    assert head.weight.data_ptr() == embedding.data_ptr()
    assert torch.equal(head.weight, model.lm_head.weight)


def test_untied_with_head(tmp_path: Path) -> None:
    model = checkpoint(tmp_path, tied=False)
    head, embedding = head_and_embedding(tmp_path)
    assert torch.equal(head.weight, model.lm_head.weight)
    assert not torch.equal(head.weight, embedding)


def test_untied_without_head_is_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path, tied=False)
    drop_head(tmp_path)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight.*tie_word_embeddings"):
        head_and_embedding(tmp_path)


def test_setting_absent_means_untied_as_in_the_reference(tmp_path: Path) -> None:
    model = checkpoint(tmp_path, tied=False)
    change_setting(tmp_path, None)
    reread = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    assert reread.config.tie_word_embeddings is False
    head, _ = head_and_embedding(tmp_path)
    assert torch.equal(head.weight, reread.lm_head.weight)
    assert torch.equal(head.weight, model.lm_head.weight)
    drop_head(tmp_path)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
        head_and_embedding(tmp_path)


def test_a_tied_model_ignores_a_stray_head(tmp_path: Path) -> None:
    checkpoint(tmp_path, tied=False)
    change_setting(tmp_path, True)
    head, embedding = head_and_embedding(tmp_path)
    assert head.weight.data_ptr() == embedding.data_ptr()
