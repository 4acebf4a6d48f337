"""Text to tokens and back: whole characters only, stop strings never shown, control tokens only from the program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from core.errors import CheckpointError, ConfigError
from core.runtime.chat_template import ChatTemplate, Quoting, split_at
from core.runtime.detokenizer import REPLACEMENT, ByteDetokenizer, StopScanner, TextStream, WindowDetokenizer, unfinished_tail
from core.runtime.gguf_file import smollm_tokenizer
from core.runtime.hf_folder import FolderSource
from core.runtime.tokenizer import ByteTokenizer, LibraryTokenizer, gpt2_bytes
from tests.runtime_texts import sentencepiece_like, tiny_bpe

BYTES = [bytes((b,)) for b in range(256)]
TEXTS = ("안녕하세요", "naïve café", "日本語 and Latin", "👩‍👩‍👧‍👦 family", "e\u0301", "\ufeffmark", "plain")


@pytest.mark.parametrize("text", TEXTS)
def test_a_character_arrives_whole(text: str) -> None:
    detokenizer = ByteDetokenizer(BYTES)
    pieces = [detokenizer.push(b) for b in text.encode()]
    assert REPLACEMENT not in "".join(pieces)
    assert [p for p in pieces if p] == list(text)
    assert detokenizer.finish() == ""


@given(st.binary(max_size=40))
def test_the_stream_equals_the_decoded_bytes(data: bytes) -> None:
    detokenizer = ByteDetokenizer(BYTES)
    assert "".join(detokenizer.push(b) for b in data) + detokenizer.finish() == data.decode("utf-8", "replace")


@given(st.text(min_size=1, max_size=6), st.integers(0, 3))
def test_an_output_that_ends_within_a_character(text: str, cut: int) -> None:
    data = text.encode()
    data = data[: len(data) - cut] or data
    detokenizer = ByteDetokenizer(BYTES)
    streamed = "".join(detokenizer.push(b) for b in data)
    assert REPLACEMENT not in streamed.replace(REPLACEMENT, "", text.count(REPLACEMENT))
    assert streamed + detokenizer.finish() == data.decode("utf-8", "replace")


def test_unfinished_tail() -> None:
    assert unfinished_tail(b"abc") == b""
    assert unfinished_tail("a😀".encode()[:-1]) == "😀".encode()[:-1]
    assert unfinished_tail(b"\xff") == b""
    assert unfinished_tail("가나".encode()[:-2]) == "나".encode()[:1]


def test_a_character_begun_in_the_prompt() -> None:
    first, rest = "é".encode()
    completed = ByteDetokenizer(BYTES, bytes((first,)))
    assert completed.push(rest) + completed.push(ord("a")) == "éa"
    broken_off = ByteDetokenizer(BYTES, bytes((first,)))
    assert broken_off.push(ord("a")) + broken_off.push(ord("b")) + broken_off.finish() == "ab"
    silent = ByteDetokenizer(BYTES, bytes((first,)))
    assert silent.finish() == ""


def test_window_detokenizer_over_a_sentencepiece_vocabulary() -> None:
    library = sentencepiece_like()
    tokenizer = LibraryTokenizer(library, vocab_size=library.get_vocab_size(), bos_token_id=None, eos_token_ids=(1,))
    for text in ("hello 안녕 world", "a 😀 b", "hello  hello"):
        ids = tokenizer.encode(text)
        detokenizer = tokenizer.new_detokenizer()
        assert isinstance(detokenizer, WindowDetokenizer)
        pieces = [detokenizer.push(i) for i in ids]
        assert REPLACEMENT not in "".join(pieces)
        assert "".join(pieces) + detokenizer.finish() == tokenizer.decode(ids) == text


def test_stop_string_is_held_back_and_never_shown() -> None:
    scanner = StopScanner(["###", "STOP"])
    assert scanner.push("ab#") == "ab"
    assert scanner.push("#c") == "##c"
    assert scanner.push("ST") == ""
    assert scanner.push("OP and more") == ""
    assert scanner.found == "STOP"
    assert scanner.push("later") == ""
    assert scanner.flush() == ""


@given(st.lists(st.text("ab", max_size=4), max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_stop_scanning_equals_searching_the_whole(pieces: list[str], stops: list[str]) -> None:
    scanner = StopScanner(stops)
    shown = ""
    for piece in pieces:
        shown += scanner.push(piece)
        assert not any(stop in shown for stop in stops)
    shown += scanner.flush()
    whole = "".join(pieces)
    if scanner.found is None:
        assert shown == whole
        assert not any(stop in whole for stop in stops)
    else:
        # The first token that completes any stop string ends the output, at that text's first stop string.
        ends = [sum(map(len, pieces[: n + 1])) for n in range(len(pieces))]
        seen = next(whole[:end] for end in ends if any(s in whole[:end] for s in stops))
        assert shown == seen[: min(seen.find(s) for s in stops if s in seen)]


def test_stop_strings_count_only_from_min_tokens_on() -> None:
    stream = TextStream(ByteDetokenizer(BYTES), ["x"], min_tokens=3)
    assert [stream.push(ord(c)) for c in "xxaxb"] == ["x", "x", "a", "", ""]
    assert stream.stopped
    assert stream.finish() == ""


def test_stop_string_over_several_tokens_and_the_rest_at_the_end() -> None:
    stream = TextStream(ByteDetokenizer(BYTES), ["END"])
    assert "".join(stream.push(b) for b in b"so EN") == "so "
    assert stream.finish() == "EN"


def test_byte_alphabet_is_a_bijection() -> None:
    table = gpt2_bytes()
    assert sorted(table.values()) == list(range(256))
    assert table["Ġ"] == 32
    assert table["a"] == 97


@given(st.text(max_size=40))
def test_byte_level_round_trip(text: str) -> None:
    tokenizer = tiny_bpe()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(tokenizer.control_tokens.values())


def test_decode_equals_the_library() -> None:
    tokenizer = tiny_bpe()
    for text in TEXTS:
        ids = [*tokenizer.encode(text), 2, *tokenizer.encode(" x")]
        assert tokenizer.decode(ids) == tokenizer._decode_list(ids)


def test_digits_are_cut_one_by_one() -> None:
    tokens = [*gpt2_bytes(), "12", "ab"]
    library = smollm_tokenizer(tokens, ["1 2", "a b"], [1] * len(tokens))
    assert [library.id_to_token(i) for i in library.encode("ab12").ids] == ["ab", "1", "2"]


def test_chat_equals_the_library_where_nothing_is_quoted() -> None:
    tokenizer = tiny_bpe()
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "hi 12"}])
    assert ids == [1, *tokenizer.encode("user\nhi 12"), 2, *tokenizer.encode("\n"), 1, *tokenizer.encode("assistant\n")]


def test_a_template_may_refuse() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {}, "m")
    with pytest.raises(CheckpointError, match="m refuses these messages: roles must alternate"):
        template.render([{"role": "user", "content": "x"}])
    with pytest.raises(CheckpointError, match="not a valid Jinja template"):
        ChatTemplate("{% for %}", {}, "m")


def test_a_template_is_sandboxed() -> None:
    hostile = ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}", {}, "m")
    with pytest.raises(CheckpointError):
        hostile.render([{"role": "user", "content": "x"}])


def test_template_features_that_checkpoints_use() -> None:
    source = (
        "{%- for m in messages %}{% if m.role == 'skip' %}{% continue %}{% endif %}"
        "{% generation %}{{ m | tojson }}{% endgeneration %}{% endfor %}{{ bos_token }}"
    )
    text = ChatTemplate(source, {"bos_token": "<s>"}, "m").render(
        [{"role": "skip", "content": ""}, {"role": "u", "content": "é"}]
    )
    assert text == '{"role": "u", "content": "é"}<s>'


@given(st.lists(st.sampled_from(["<a>", "<ab>", "x", "\ue000", "<", "0"]), max_size=8).map("".join))
def test_quoting_round_trip(text: str) -> None:
    quoting = Quoting(["<a>", "<ab>"], [text])
    quoted = quoting.quote(text)
    assert "<a>" not in quoted
    assert "<ab>" not in quoted
    assert quoting.unquote(quoted) == text
    assert "".join(piece for piece, _ in split_at(text, ["<a>", "<ab>"])) == text


def test_synthetic_vocabulary_below_a_byte_says_so() -> None:
    small = ByteTokenizer(100, None, (0,))
    with pytest.raises(ConfigError, match="100 tokens"):
        small.encode("x")
    assert small.decode([65, 66]) == "AB"


def test_synthetic_words_are_readable_and_distinct() -> None:
    tokenizer = ByteTokenizer(49_152, None, (0,))
    words = [tokenizer.decode([i]) for i in range(256, 49_152)]
    assert len(set(words)) == len(words)
    assert all(w.startswith(" ") and w[1:].isalpha() for w in words)


@pytest.mark.parametrize(
    ("text", "words"), [("{", ["tokenizer.json", "cannot", "read"]), (None, ["no tokenizer.json", "vocab.txt"])]
)
def test_a_tokenizer_that_cannot_be_read_is_named(tmp_path: Path, text: str | None, words: list[str]) -> None:
    config = {"model_type": "llama", "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config["intermediate_size"] = 16
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "vocab.txt").write_text("")
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    source = FolderSource(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        source.tokenizer()
    assert all(w in str(caught.value) for w in words)


def test_library_tokenizer_keeps_plain_added_tokens_as_text() -> None:
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={c: i for i, c in enumerate(gpt2_bytes())}, merges=[]))
    library.decoder = tokenizers.decoders.ByteLevel()
    library.add_tokens([tokenizers.AddedToken("<think>", special=False)])
    tokenizer = LibraryTokenizer(library, vocab_size=257, bos_token_id=None, eos_token_ids=())
    assert tokenizer.decode([256]) == "<think>"
