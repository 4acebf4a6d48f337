"""Small tokenizers built in memory, with control tokens like those of real ones."""

from __future__ import annotations

import json

import tokenizers

from core.runtime.chat_template import ChatTemplate
from core.runtime.gguf_file import smollm_tokenizer
from core.runtime.tokenizer import LibraryTokenizer, gpt2_bytes

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def tiny_bpe(bos_token_id: int | None = None, template: str | None = CHATML) -> LibraryTokenizer:
    """A byte-level BPE of SmolLM's shape: three control tokens, 256 bytes, two merges."""
    tokens = [*CONTROLS, *gpt2_bytes(), "he", "Ġa"]
    library = smollm_tokenizer(tokens, ["h e", "Ġ a"], [3] * 3 + [1] * (len(tokens) - 3))
    variables = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    return LibraryTokenizer(
        library,
        vocab_size=len(tokens),
        bos_token_id=bos_token_id,
        eos_token_ids=(2,),
        chat_template=None if template is None else ChatTemplate(template, variables, "tiny"),
    )


def sentencepiece_like() -> tokenizers.Tokenizer:
    """A BPE with byte fallback and the word mark, as Llama 2's."""
    words = [
        "<s>",
        "</s>",
        "<unk>",
        *(f"<0x{b:02X}>" for b in range(256)),
        "▁",
        *"abcdehlorw",
        "▁h",
        "▁he",
        "ll",
        "▁hell",
        "▁hello",
    ]
    merges = ["▁ h", "▁h e", "l l", "▁he ll", "▁hell o"]
    content = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [
            {"id": i, "content": t, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
            for i, t in enumerate(words[:3])
        ],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": {w: i for i, w in enumerate(words)}, "merges": merges},
    }  # fmt: skip
    return tokenizers.Tokenizer.from_str(json.dumps(content))
