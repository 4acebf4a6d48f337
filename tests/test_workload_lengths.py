"""Length distributions and prompts of exact length."""

from __future__ import annotations

import numpy as np
import pytest

from core.errors import ConfigError
from core.lengths import LengthSpec
from core.prompts import RandomPrompts, StandInPrompts, TextPrompts, split_text, text_prompts


def draw(length: LengthSpec, count: int = 20_000, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.array([length.sample(rng) for _ in range(count)])


def test_fixed_and_uniform_lengths():
    assert set(draw(LengthSpec.fixed(7), 50).tolist()) == {7}
    found = draw(LengthSpec.uniform(3, 6))
    assert set(found.tolist()) == {3, 4, 5, 6}
    assert found.mean() == pytest.approx(LengthSpec.uniform(3, 6).mean, rel=0.02)


def test_lognormal_has_its_median_its_mean_and_its_bounds():
    length = LengthSpec.lognormal(200, 0.5)
    found = draw(length)
    assert np.median(found) == pytest.approx(200, rel=0.03)
    assert found.mean() == pytest.approx(200 * np.exp(0.125), rel=0.03)
    assert length.mean == pytest.approx(200 * np.exp(0.125))
    clamped = draw(LengthSpec.lognormal(200, 2.0, 50, 300))
    assert (clamped.min(), clamped.max()) == (50, 300)


def test_empirical_lengths_are_drawn_from_the_list():
    length = LengthSpec.empirical([5, 5, 9, 100])
    found = draw(length)
    assert set(found.tolist()) == {5, 9, 100}
    assert (found == 5).mean() == pytest.approx(0.5, abs=0.02)
    assert (length.low, length.high, length.mean) == (5, 100, 29.75)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LengthSpec.fixed(0), "shortest length is 0"),
        (lambda: LengthSpec.uniform(9, 3), "9 is above the longest 3"),
        (lambda: LengthSpec.lognormal(0, 0.5), "median length is 0.0"),
        (lambda: LengthSpec.lognormal(float("nan"), 0.5), "median length is nan"),
        (lambda: LengthSpec.lognormal(10, 9), "sigma is 9.0"),
        (lambda: LengthSpec.empirical([]), "at least one value"),
        (lambda: LengthSpec.empirical([3, 0]), "a length of the list is 0"),
        (lambda: LengthSpec("poisson"), "choose one of: fixed, uniform, lognormal, empirical"),
    ],
)
def test_lengths_that_make_no_sense_are_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_random_prompts_keep_off_special_tokens_and_repeat_with_the_seed():
    source = RandomPrompts(vocab_size=50, low=3)
    ids = source.cut(np.random.default_rng(1), 5000)
    assert (min(ids), max(ids)) == (3, 49)
    assert ids == source.cut(np.random.default_rng(1), 5000)
    assert source.prefix(2, 40) == source.prefix(2, 40) != source.prefix(3, 40)
    with pytest.raises(ConfigError, match="empty range"):
        RandomPrompts(vocab_size=3)


def test_prompts_that_no_model_reads_differ_in_their_first_block_and_share_their_prefixes():
    source = StandInPrompts()
    rng = np.random.default_rng(5)
    cuts = [source.cut(rng, n) for n in [1, 2, 40_000, *[24] * 20_000]]
    assert [len(c) for c in cuts[:3]] == [1, 2, 40_000]
    assert len({c[:16] for c in cuts[3:]}) == 20_000
    assert all(0 <= c[0] < 2**31 and type(c[0]) is int for c in cuts)
    assert source.prefix(3, 64) == StandInPrompts().prefix(3, 64) != source.prefix(4, 64)
    assert cuts[5] == [source.cut(r, n) for r in [np.random.default_rng(5)] for n in [1, 2, 40_000, 24, 24, 24]][5]


def test_text_windows_begin_at_a_sentence_and_wrap_round():
    source = TextPrompts([(1, 2, 3), (4, 5), (), (6, 7, 8, 9)])
    rng = np.random.default_rng(0)
    windows = {source.cut(rng, 12) for _ in range(60)}
    assert {w[0] for w in windows} == {1, 4, 6}
    assert (4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6) in windows
    assert all(len(w) == 12 for w in windows)


def test_question_prompts_have_the_exact_length_and_fall_back_to_text_where_there_is_no_room():
    source = TextPrompts([(1, 2), (3,)], questions=[(50, 51, 52)], chat_open=(90,), chat_close=(91, 92))
    rng = np.random.default_rng(0)
    for length in range(6, 30):
        ids = source.cut(rng, length)
        assert len(ids) == length
        assert ids[0] == 90
        assert ids[-5:] == (50, 51, 52, 91, 92)
    assert len(source.cut(rng, 5)) == 5
    assert 90 not in source.cut(rng, 5)


def test_the_text_of_the_project_gives_prompts_and_questions():
    sentences, questions = split_text("One is here. Two, too!\nThree?\n=== questions ===\nWhy?\n\nHow so?\n")
    assert sentences == ["One is here.", "Two, too!", "Three?"]
    assert questions == ["Why?", "How so?"]
    source = text_prompts(lambda s: list(s.encode()))
    ids = source.cut(np.random.default_rng(4), 700)
    assert len(ids) == 700
    assert bytes(ids).decode().rstrip().endswith(("?", ".")), "a question closes the prompt"


def test_the_text_file_holds_some_thousand_words_and_about_forty_questions():
    from core.prompts import PROMPTS_FILE

    sentences, questions = split_text(PROMPTS_FILE.read_text(encoding="utf-8"))
    assert sum(len(s.split()) for s in sentences) > 3000
    assert len(questions) >= 40
    assert len(set(questions)) == len(questions)
    assert len(set(sentences)) == len(sentences), "a repeated sentence would make prefix hits that nobody asked for"


def test_a_text_without_words_is_refused():
    with pytest.raises(ConfigError, match="has no token"):
        text_prompts(lambda s: list(s.encode()), "   ")
