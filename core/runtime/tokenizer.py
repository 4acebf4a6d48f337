"""Text to tokens and back, with one rule for control tokens: only the program writes them, never a person's text.

raw prompt        [BOS] + plain tokens of the text; control tokens spelled out in it are plain text
chat              the template's control tokens + plain tokens of what was said; exactly one BOS if the model has one
prepared text     allow_special=True: control tokens in it count; still exactly one BOS
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Protocol

import tokenizers

from core.errors import CheckpointError, ConfigError
from core.runtime.chat_template import ChatTemplate, Message, Quoting, split_at
from core.runtime.detokenizer import ByteDetokenizer, ByteVocabulary, Detokenizer, WindowDetokenizer


class Tokenizer(Protocol):
    """What the engine and the pages use."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins every prompt, or None if the model has none."""
        ...

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Return the prompt tokens of a text, with exactly one BOS in front if the model has one."""
        ...

    def decode(self, token_ids: Sequence[int], prompt_token_ids: Sequence[int] = ()) -> str:
        """Return the text of output tokens; control tokens have none.

        `prompt_token_ids` matters only if the prompt ends within a character.
        """
        ...

    def apply_chat_template(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """Return the prompt tokens of a conversation; a message is {"role": ..., "content": ...}."""
        ...

    def new_detokenizer(self, prompt_token_ids: Sequence[int] = ()) -> Detokenizer:
        """Return a fresh incremental decoder for one request's output."""
        ...


def gpt2_bytes() -> dict[str, int]:
    """Return the byte of each character of the GPT-2 byte alphabet (printable stand-ins for all 256 bytes)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in printable}
    rest = (b for b in range(256) if b not in printable)
    return table | {chr(256 + index): b for index, b in enumerate(rest)}


class LibraryTokenizer:
    """A `tokenizers.Tokenizer` with its control tokens under control.

    Args:
        library: the loaded tokenizer; its own post-processing is not used.
        vocab_size: rows of the model's embedding.
        bos_token_id: the token to put in front of every prompt, None for none.
        eos_token_ids: tokens that end an output.
        chat_template: None if the checkpoint has none; a chat is then the contents, one a line.
    """

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        *,
        vocab_size: int,
        bos_token_id: int | None,
        eos_token_ids: tuple[int, ...],
        chat_template: ChatTemplate | None = None,
    ) -> None:
        self._library = library
        self._encoding = threading.Lock()  # pages, server and engine share one tokenizer; see _encode
        self.vocab_size = vocab_size
        self.bos_token_id = bos_token_id
        self.eos_token_ids = eos_token_ids
        self._template = chat_template
        added = library.get_added_tokens_decoder()
        self._controls = {token.content: token_id for token_id, token in added.items() if token.special}
        self._plain_added = {token_id: token.content for token_id, token in added.items() if not token.special}
        self._vocabulary = ByteVocabulary(self._byte_table()) if _is_byte_level(library) else None

    @property
    def control_tokens(self) -> dict[str, int]:
        """Text and id of each control token."""
        return dict(self._controls)

    def to_json(self) -> str:
        """The library's own file format, tokenizer.json."""
        with self._encoding:
            return str(self._library.to_str())

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        return self._with_bos(self._encode(text, allow_special))

    def decode(self, token_ids: Sequence[int], prompt_token_ids: Sequence[int] = ()) -> str:
        if self._vocabulary is None:
            return self._decode_list(token_ids)
        detokenizer = self.new_detokenizer(prompt_token_ids)
        return "".join(detokenizer.push(t) for t in token_ids) + detokenizer.finish()

    def apply_chat_template(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        contents = [m["content"] for m in messages]
        if self._template is None:
            return self.encode("\n".join(contents))
        quoting = Quoting(tuple(self._controls), contents)
        quoted = [{**m, "content": quoting.quote(m["content"])} for m in messages]
        text = self._template.render(quoted, add_generation_prompt=add_generation_prompt)
        if all(q["content"] == c for q, c in zip(quoted, contents, strict=True)):
            return self._with_bos(self._encode(text, allow_special=True))
        ids: list[int] = []
        for piece, control in split_at(text, tuple(self._controls)):
            ids += [self._controls[piece]] if control else self._encode(quoting.unquote(piece), allow_special=False)
        return self._with_bos(ids)

    def new_detokenizer(self, prompt_token_ids: Sequence[int] = ()) -> Detokenizer:
        vocabulary = self._vocabulary
        if vocabulary is None:
            return WindowDetokenizer(self._decode_list)
        return ByteDetokenizer(vocabulary, vocabulary.tail(prompt_token_ids))

    def _encode(self, text: str, allow_special: bool) -> list[int]:
        with self._encoding:  # the switch is a property of the shared library object
            self._library.encode_special_tokens = not allow_special
            return list(self._library.encode(text, add_special_tokens=False).ids)

    def _with_bos(self, ids: list[int]) -> list[int]:
        bos = self.bos_token_id
        if bos is None or ids[:1] == [bos]:
            return ids
        return [bos, *ids]

    def _decode_list(self, token_ids: Sequence[int]) -> str:
        return str(self._library.decode(list(token_ids), skip_special_tokens=True))

    def _byte_table(self) -> list[bytes]:
        """Return the bytes of every token id of a byte-level vocabulary."""
        alphabet = gpt2_bytes()
        controls = set(self._controls.values())
        table = [b""] * max(self.vocab_size, self._library.get_vocab_size(with_added_tokens=True))
        for token, token_id in self._library.get_vocab(with_added_tokens=True).items():
            if token_id in controls:
                continue
            if token_id in self._plain_added:
                table[token_id] = self._plain_added[token_id].encode()
            else:
                table[token_id] = b"".join(bytes((alphabet[c],)) if c in alphabet else c.encode() for c in token)
        return table


def _is_byte_level(library: tokenizers.Tokenizer) -> bool:
    decoder = json.loads(library.to_str()).get("decoder") or {}
    return bool(decoder.get("type") == "ByteLevel")


class ByteTokenizer:
    """Tokens 0-255 are bytes; the rest of a larger vocabulary are made-up words, so that random output is readable.

    Args:
        vocab_size: at least 256 for text; smaller models take token ids only.
    """

    def __init__(self, vocab_size: int, bos_token_id: int | None, eos_token_ids: tuple[int, ...]) -> None:
        self.vocab_size = vocab_size
        self.bos_token_id = bos_token_id
        self.eos_token_ids = eos_token_ids
        table = [bytes((b,)) if b < 256 else _word(b).encode() for b in range(vocab_size)]
        for control in {*eos_token_ids, bos_token_id} - {None}:
            table[control] = b""  # type: ignore[index]
        self._vocabulary = ByteVocabulary(table)

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Return the bytes of the text.

        Raises:
            ConfigError: if the vocabulary has fewer than 256 tokens.
        """
        if self.vocab_size < 256:
            raise ConfigError(
                f"the synthetic model has a vocabulary of {self.vocab_size} tokens; text needs 256 (one a byte),"
                " so give token ids or a larger vocabulary"
            )
        ids = list(text.encode())
        return ids if self.bos_token_id is None else [self.bos_token_id, *ids]

    def decode(self, token_ids: Sequence[int], prompt_token_ids: Sequence[int] = ()) -> str:
        detokenizer = self.new_detokenizer(prompt_token_ids)
        return "".join(detokenizer.push(t) for t in token_ids) + detokenizer.finish()

    def apply_chat_template(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        lines = [f"{m['role']}: {m['content']}" for m in messages] + (["assistant:"] if add_generation_prompt else [])
        return self.encode("\n".join(lines))

    def new_detokenizer(self, prompt_token_ids: Sequence[int] = ()) -> Detokenizer:
        return ByteDetokenizer(self._vocabulary, self._vocabulary.tail(prompt_token_ids))


def _word(number: int) -> str:
    """Spell a number in syllables, e.g. " tako"."""
    consonants, vowels = "bdfgklmnprstvz", "aeiou"
    letters = []
    rest = number - 256
    while True:
        rest, syllable = divmod(rest, len(consonants) * len(vowels))
        letters.append(consonants[syllable // len(vowels)] + vowels[syllable % len(vowels)])
        if rest == 0:
            return " " + "".join(letters)


def load_library(path: str) -> tokenizers.Tokenizer:
    """Read a tokenizer.json.

    Raises:
        CheckpointError: naming the file and what is wrong with it.
    """
    try:
        return tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # the library raises plain Exception for every kind of fault
        raise CheckpointError(f"{path} is not a tokenizer that the tokenizers library can read: {error}") from error
