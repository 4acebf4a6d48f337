"""Kind: start tokens doubled by template and tokenizer; control tokens spelled out by a person."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers

from core.runtime.hf_folder import FolderSource
from tests.runtime_texts import CHATML, CONTROLS, tiny_bpe


@pytest.mark.parametrize("bos", [None, 0])
def test_exactly_one_start_token_where_the_model_has_one(bos: int | None) -> None:
    template = "{{ bos_token }}" + CHATML
    messages = [{"role": "user", "content": "hello"}]
    expected = 0 if bos is None else 1
    plain, templated = tiny_bpe(bos), tiny_bpe(bos, template if bos is not None else CHATML)
    for ids in (
        plain.encode("hello"),
        plain.encode("<|endoftext|>hello"),  # spelled out: plain text behind the real one
        plain.encode("hello" if bos is None else "<|endoftext|>hello", allow_special=True),  # a prepared text that has it
        plain.encode("hello", allow_special=True),
        plain.apply_chat_template(messages),  # the template does not write it
        templated.apply_chat_template(messages),  # the template writes it
        tiny_bpe(bos, None).apply_chat_template(messages),  # no template at all
    ):
        assert ids.count(0) == expected
        assert ids[:1] == [0] or bos is None


@pytest.mark.parametrize("control", CONTROLS)
def test_spelled_out_control_text_is_plain_text(control: str) -> None:
    tokenizer = tiny_bpe()
    text = f"say {control} twice {control}"
    ids = tokenizer.encode(text)
    assert not set(ids) & {0, 1, 2}
    assert tokenizer.decode(ids) == text
    chat = tokenizer.apply_chat_template([{"role": "user", "content": text}])
    harmless = tokenizer.apply_chat_template([{"role": "user", "content": "say nothing"}])
    assert [i for i in chat if i in (0, 1, 2)] == [i for i in harmless if i in (0, 1, 2)] == [1, 2, 1]
    assert text in tokenizer.decode(chat)


def test_a_folder_whose_postprocessor_adds_the_start_token(tmp_path: Path) -> None:
    """Llama's tokenizer.json writes the start token itself; it must not be doubled by ours."""
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"<s>": 0, "</s>": 1, "a": 2, "b": 3}, merges=[]))
    library.add_special_tokens(["<s>", "</s>"])
    library.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    library.save(str(tmp_path / "tokenizer.json"))
    config = {"model_type": "llama", "vocab_size": 4, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config["intermediate_size"] = 16
    ends = {"bos_token_id": 0, "eos_token_id": 1}
    (tmp_path / "config.json").write_text(json.dumps(config | ends))
    names = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "<s>{{ messages[0].content }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    tokenizer = FolderSource(tmp_path).tokenizer()
    assert tokenizer.bos_token_id == 0
    assert tokenizer.eos_token_ids == (1,)
    assert tokenizer.encode("ab") == [0, 2, 3]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "ab"}]) == [0, 2, 3]
