"""What is asked: prompts of the wanted lengths that share no beginning unless a log says so."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline.errors import RequestError
from phaseline.files.gguf import open_gguf
from phaseline.files.tokenizer import Tokenizer
from phaseline.lab.prompts import WORDS, Made, Vocabulary, logged_asks, random_asks
from phaseline.lab.systems.base import Ask
from phaseline.lab.workload_files import Log, Logged

vocabularies = st.integers(1, 500).map(range) | st.just(WORDS)


def parts(ask: Ask) -> list[str] | list[int]:
    return ask.prompt.split() if isinstance(ask.prompt, str) else list(ask.prompt)


def shared(one: Ask, other: Ask) -> int:
    """Length of the beginning that two prompts share."""
    pairs = list(zip(parts(one), parts(other), strict=False))
    return next((at for at, (a, b) in enumerate(pairs) if a != b), len(pairs))


@given(st.integers(0, 30), st.integers(1, 40), st.integers(1, 40), vocabularies, st.floats(0, 0.99), st.integers(0, 9))
def test_random_asks_keep_their_lengths_and_their_seed(
    count: int, length: int, answer: int, vocabulary: Vocabulary, ratio: float, seed: int
) -> None:
    asks = random_asks(count, length, answer, vocabulary=vocabulary, range_ratio=ratio, seed=seed)
    assert len(asks) == count
    for number, ask in enumerate(asks):
        assert ask == asks[number]
        assert max(1, round(length * (1 - ratio))) <= len(parts(ask)) <= round(length * (1 + ratio))
        assert max(1, round(answer * (1 - ratio))) <= ask.max_tokens <= round(answer * (1 + ratio))
        assert set(parts(ask)) <= set(vocabulary)


def test_lengths_vary_over_their_whole_range() -> None:
    asks = random_asks(400, 10, 100, range_ratio=0.5)
    assert {len(parts(ask)) for ask in asks} == set(range(5, 16))
    assert min(ask.max_tokens for ask in asks) < 55 and max(ask.max_tokens for ask in asks) > 145


@given(vocabularies, st.integers(0, 9))
def test_prompts_begin_differently_as_far_as_the_vocabulary_reaches(vocabulary: Vocabulary, seed: int) -> None:
    asks = random_asks(len(vocabulary), 1, 1, vocabulary=vocabulary, seed=seed)
    assert len({parts(ask)[0] for ask in asks}) == len(vocabulary)


def test_beyond_it_they_differ_soon() -> None:
    asks = random_asks(2000, 16, 1)
    assert len({tuple(parts(ask)[:6]) for ask in asks}) == 2000


def test_warm_ups_are_the_rest_of_the_same_list() -> None:
    asks = random_asks(110, 8, 1, vocabulary=range(1000))
    measured, warmups = asks[:100], asks[100:]
    assert isinstance(warmups, Made) and len(warmups) == 10
    assert list(warmups) == list(asks)[100:] and warmups[-1] == asks[109]
    assert not any(shared(one, other) for one in warmups for other in measured)


def test_seeds_give_other_prompts() -> None:
    assert random_asks(1, 50, 1, seed=1)[0] != random_asks(1, 50, 1, seed=2)[0]


def test_an_answer_of_fixed_length_says_so() -> None:
    fixed, free = (random_asks(1, 3, 7, ignore_eos=eos, options={"temperature": 0})[0] for eos in (True, False))
    assert (fixed.max_tokens, fixed.min_tokens, fixed.ignore_eos) == (7, 7, True)
    assert (free.max_tokens, free.min_tokens, free.ignore_eos) == (7, None, False)
    assert fixed.options == {"temperature": 0}


def test_words_make_about_as_many_tokens(smollm2_path: Path) -> None:
    tokenizer = Tokenizer.from_metadata(open_gguf(smollm2_path).metadata)
    assert len(set(WORDS)) == len(WORDS)
    (ask,) = random_asks(1, 1000, 1)
    assert isinstance(ask.prompt, str)
    assert len(tokenizer.encode(ask.prompt, bos=False)) == pytest.approx(1000, rel=0.05)


def logged(*blocks: int, tokens: int | None = None) -> Logged:
    return Logged(512 * len(blocks) if tokens is None else tokens, 3, 0.0, blocks)


@pytest.mark.parametrize("vocabulary", [range(30_000), WORDS])
def test_equal_blocks_are_equal_tokens_and_others_are_not(vocabulary: Vocabulary) -> None:
    log = Log((logged(7, 8), logged(7, 9, tokens=600), logged(9, 8), logged(7, 8), logged(10**30)), 0)
    one, same_start, other_start, same, far = logged_asks(log, vocabulary=vocabulary)
    assert [len(parts(ask)) for ask in (one, same_start, other_start, far)] == [1024, 600, 1024, 512]
    assert shared(one, same_start) == 512  # a prefix of one block, and not a token more
    assert parts(one)[512:] == parts(other_start)[512:]
    assert parts(same_start)[512:] == parts(other_start)[:88]  # the part of a block that the prompt takes
    assert one == same and shared(one, other_start) == shared(one, far) == 0
    assert [ask.max_tokens for ask in (one, far)] == [3, 3]


def test_a_log_of_lengths_gets_distinct_prompts_and_one_of_texts_its_own() -> None:
    log = Log((Logged(5, 2, 0.0), Logged(9, 4, 1.0), Logged(3, 1, text="What is a phase?")), 0)
    short, long, text = logged_asks(log, vocabulary=range(100))
    assert [len(parts(short)), len(parts(long))] == [5, 9] and shared(short, long) == 0
    assert text.prompt == "What is a phase?" and text.max_tokens == 1


@pytest.mark.parametrize("kind", [Logged(6, 2, 0.0), Logged(6, 2, 0.0, (4,)), Logged(6, 2, text="Tell me more.")])
def test_a_logs_warm_ups_share_nothing_with_it(kind: Logged) -> None:
    asks = logged_asks(Log((kind, kind), 0), warmups=3, vocabulary=range(1000))
    assert len(asks) == 5
    assert [len(parts(ask)) for ask in asks[2:]] == [6, 6, 6]
    assert not any(shared(one, other) for one in asks[2:] for other in asks[:2])


@pytest.mark.parametrize(
    ("count", "length", "answer", "ratio"), [(-1, 1, 1, 0), (1, 0, 1, 0), (1, 1, 0, 0), (1, 1, 1, 1), (1, 1, 1, -0.1)]
)
def test_impossible_asks_are_refused(count: int, length: int, answer: int, ratio: float) -> None:
    with pytest.raises(RequestError, match="random requests"):
        random_asks(count, length, answer, range_ratio=ratio)


def test_an_empty_vocabulary_and_a_negative_seed_are_refused() -> None:
    with pytest.raises(RequestError, match="vocabulary"):
        random_asks(1, 1, 1, vocabulary=[])
    with pytest.raises(RequestError, match="seed"):
        random_asks(1, 1, 1, seed=-1)
