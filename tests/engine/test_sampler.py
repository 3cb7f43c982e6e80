"""Sampler: token by token the numpy reference's choice, which is itself checked against published numbers."""

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from phaseline.engine import sample_reference as reference
from phaseline.engine.sampler import Sampler, prompt_logprobs, sample_batch
from phaseline.engine.types import SamplingParams
from phaseline.errors import PhaselineError

Logits = NDArray[np.float32]
VOCABS = st.sampled_from([1, 2, 63, 64, 65, 700, 1300, 3000])  # around the width of a group and far from it
KINDS = ["spread", "flat", "peaked", "ties", "equal", "holes", "huge"]
SEEDS = st.integers(0, 2**64 - 1)


def row_of(kind: str, vocab: int, seed: int) -> Logits:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=vocab)
    if kind == "ties":
        z = np.round(2 * z)
    if kind == "equal":
        z[:] = z[0]
    if kind == "holes":
        z[rng.random(vocab) < 0.7] = -np.inf
        z[rng.integers(vocab)] = 0
    scale = {"flat": 0.01, "peaked": 8.0, "huge": 1e37}.get(kind, 2.0)
    return (scale * z).astype(np.float32)


LOGITS = st.builds(row_of, st.sampled_from(KINDS), VOCABS, st.integers(0, 2**32))
FILTERS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([5e-324, 1e-30, 0.01, 0.5, 1.0, 1.7, 30.0, 1000.0]),
    top_k=st.sampled_from([0, 0, 1, 2, 7, 64, 100, 2**31 - 1]),
    top_p=st.sampled_from([1.0, 1.0, 1e-300, 0.1, 0.5, 0.9, 0.999, 1 - 1e-16]),
    min_p=st.sampled_from([0.0, 0.0, 1e-300, 0.001, 0.2, 1.0]),
)


def sampler(
    vocab: int, *, seed: int = 0, prompt: Any = (0,), stop_ids: Any = (), index: int = 0, **params: Any
) -> Sampler:
    return Sampler(SamplingParams(**params), vocab=vocab, seed=seed, prompt=prompt, stop_ids=stop_ids, index=index)


def draws(logits: Logits, count: int, *, seed: int = 0, **params: Any) -> list[int]:
    """Tokens at `count` positions, all from one row."""
    one = sampler(len(logits), seed=seed, **params)
    return sample_batch([one] * count, logits[np.newaxis], range(count), [0] * count)


def greedy(logits: Any, **params: Any) -> int:
    return sampler(len(logits), **params).sample(np.array(logits, np.float32), 0)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # the known answers published with the generator
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_the_reference_generator_gives_the_published_words(counter: str, key: str, words: str) -> None:
    c, k, w = ([int(word, 16) for word in text.split()] for text in (counter, key, words))
    assert list(reference.philox4x32((c[0], c[1], c[2], c[3]), (k[0], k[1]))) == w


def test_the_reference_masses_are_exponentials() -> None:
    z = np.linspace(-20, 5, 5000, dtype=np.float32)
    exact = np.exp((z.astype(float) - 5) / 0.9)
    np.testing.assert_allclose(reference.masses(z, 0.9) / 2.0**40, exact, rtol=3e-6, atol=2.0**-41)


@given(logits=LOGITS, params=FILTERS, seed=SEEDS, index=st.integers(0, 127), start=st.integers(0, 2**40))
@example(row_of("flat", 49152, 1), SamplingParams(temperature=1, top_p=0.9), 1, 0, 0)
@example(row_of("peaked", 49152, 2), SamplingParams(temperature=1, top_p=0.9), 2, 0, 0)
@example(row_of("flat", 5000, 5), SamplingParams(temperature=1, top_k=20), 5, 0, 0)
@example(row_of("spread", 49152, 3), SamplingParams(temperature=1, top_k=1000, top_p=0.8), 3, 0, 0)
@example(row_of("ties", 49152, 4), SamplingParams(temperature=1, top_k=50, min_p=0.1), 4, 0, 0)
def test_filters_and_draws_are_the_references(
    logits: Logits, params: SamplingParams, seed: int, index: int, start: int
) -> None:
    count = 16
    one = Sampler(params, vocab=len(logits), seed=seed, prompt=[0], index=index)
    found = sample_batch([one] * count, logits[np.newaxis], range(start, start + count), [0] * count)
    same: dict[str, Any] = {"seed": seed, "index": index, "prompt": [0], "generated": []}
    assert found == [reference.choose(logits, params, position=start + i, **same) for i in range(count)]


@st.composite
def histories(draw: st.DrawFn) -> dict[str, Any]:
    vocab = draw(VOCABS)
    ids = st.integers(0, vocab - 1)
    stop_ids = draw(st.sets(ids, max_size=min(3, vocab - 1)))  # something must be left to choose
    params = replace(
        draw(FILTERS),
        temperature=draw(st.sampled_from([0.0, 0.7, 1.5])),
        repetition_penalty=draw(st.sampled_from([1.0, 1e-300, 0.8, 1.3, 1000.0])),
        presence_penalty=draw(st.sampled_from([0.0, -2.0, 0.7])),
        frequency_penalty=draw(st.sampled_from([0.0, -0.3, 1.1])),
        logit_bias=draw(st.dictionaries(ids, st.floats(-5, 5), max_size=3)),
        min_tokens=draw(st.integers(0, 6)),
    )
    prompt = draw(st.lists(ids, min_size=1, max_size=8))
    kind = draw(st.sampled_from([kind for kind in KINDS if kind != "holes"]))
    rows = np.stack([row_of(kind, vocab, draw(st.integers(0, 2**32))) for _ in range(2)])
    return {"params": params, "prompt": prompt, "stop_ids": stop_ids, "seed": draw(SEEDS), "rows": rows}


@given(histories())
def test_a_completion_is_the_references(history: dict[str, Any]) -> None:
    rows = history.pop("rows")
    prompt = history["prompt"]
    one = Sampler(vocab=rows.shape[1], **history)
    index, generated = 0, list[int]()
    for step in range(10):
        if step == 5:  # a completion forked in the middle goes on from the same past
            index, one = 9, one.fork(9)
        logits, position = rows[step % 2], len(prompt) + step
        token = one.sample(logits, position)
        assert token == reference.choose(logits, generated=generated, position=position, index=index, **history)
        generated.append(token)


class OneMask:
    """A grammar that lets the same tokens follow at any time."""

    finished = False

    def __init__(self, allowed: NDArray[np.bool_]) -> None:
        self._mask = np.packbits(np.pad(allowed, (0, -len(allowed) % 32)), bitorder="little").view(np.uint32)

    def mask(self) -> NDArray[np.uint32]:
        return self._mask

    def advance(self, token: int) -> None:
        pass


@given(histories(), st.integers(0, 2**32), st.sampled_from([0.01, 0.5, 1.0]))
def test_a_masked_choice_is_the_references(history: dict[str, Any], seed: int, share: float) -> None:
    rows, prompt = history.pop("rows"), history["prompt"]
    history |= {"params": replace(history["params"], min_tokens=0), "stop_ids": ()}  # see to those, masks themselves do
    rng = np.random.default_rng(seed)
    allowed = rng.random(rows.shape[1]) < share
    allowed[rng.integers(len(allowed))] = True
    masked: Any = OneMask(allowed)
    pair = [Sampler(vocab=rows.shape[1], constraint=constraint, **history) for constraint in (masked, None)]
    pasts: list[list[int]] = [[], []]
    for position in range(len(prompt), len(prompt) + 6):
        logits = rows[position % 2]
        tokens = sample_batch(pair, logits[np.newaxis], [position] * 2, [0, 0])
        for token, past, mask in zip(tokens, pasts, (allowed, None), strict=True):
            same: dict[str, Any] = {"generated": past, "position": position, "index": 0, "allowed": mask}
            assert token == reference.choose(logits, **same, **history)
            past.append(token)
    assert allowed[pasts[0]].all()


def test_a_mask_of_nothing_that_the_row_has_is_an_error_of_its_own() -> None:
    row = np.zeros(70, np.float32)
    row[:69] = -np.inf
    masked: Any = OneMask(np.arange(70) < 69)
    params = SamplingParams()
    with pytest.raises(PhaselineError, match="row 0: all are -inf"):
        Sampler(params, vocab=70, seed=0, prompt=[0], constraint=masked).sample(row, 0)
    masked, row[3] = OneMask(np.arange(70) == 69), np.nan  # not hidden by being forbidden
    with pytest.raises(PhaselineError, match="row 0: NaN at token 3"):
        Sampler(params, vocab=70, seed=0, prompt=[0], constraint=masked).sample(row, 0)


@given(st.sets(st.integers(0, 299), min_size=1))
def test_greedy_ties_go_to_the_lowest_id(largest: set[int]) -> None:
    assert greedy(np.isin(np.arange(300), list(largest))) == min(largest)


def test_minus_zero_ties_with_zero() -> None:
    assert greedy([-1, -0.0, 0.0]) == 1 and greedy([-1, 0.0, -0.0]) == 1


def test_filters_cut_ties_by_id() -> None:
    equal = np.zeros(200, np.float32)
    assert set(draws(equal, 200, temperature=1, top_k=3)) == {0, 1, 2}
    assert set(draws(equal, 200, temperature=1, top_p=0.02)) == {0, 1, 2, 3}
    assert set(draws(equal, 2000, temperature=1, min_p=1.0)) == set(range(200))


@pytest.mark.parametrize("params", [{"top_k": 1}, {"top_p": 1e-300}, {"temperature": 5e-324}, {"temperature": 1e-30}])
def test_the_narrowest_settings_are_greedy(params: dict[str, Any]) -> None:
    logits = row_of("spread", 1000, 5)
    assert set(draws(logits, 50, **{"temperature": 1.0} | params)) == {int(logits.argmax())}


def test_a_vocabulary_of_one_token() -> None:
    for params in ({}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 5, "top_p": 0.5, "min_p": 0.5}):
        assert draws(np.zeros(1, np.float32), 3, **params) == [0, 0, 0]
    assert prompt_logprobs(np.zeros((1, 1), np.float32), [0], 3)[0].top == [(0, 0.0)]


@given(VOCABS, st.data(), FILTERS)
def test_the_only_token_above_minus_infinity_is_chosen(vocab: int, data: st.DataObject, params: SamplingParams) -> None:
    only = data.draw(st.integers(0, vocab - 1))
    logits = np.full(vocab, -np.inf, np.float32)
    logits[only] = data.draw(st.sampled_from([-3e38, 0.0, 3e38]))
    for temperature in (0.0, params.temperature):
        one = Sampler(replace(params, temperature=temperature), vocab=vocab, seed=1, prompt=[0])
        assert one.sample(logits, 0) == only
    assert Sampler.logprob(logits, only, 5).top == [(only, 0.0)]


@pytest.mark.parametrize(
    ("params", "seed"), [({}, 1), ({"top_k": 8}, 2), ({"top_p": 0.8}, 3), ({"min_p": 0.1, "temperature": 2.0}, 4)]
)
def test_draws_follow_the_softmax(params: dict[str, Any], seed: int) -> None:
    logits, count = row_of("spread", 24, 11), 20_000
    params = {"temperature": 1.0} | params
    full = SamplingParams(**params)
    tokens = reference.kept(logits, full)
    p = np.exp(reference.log_softmax(logits[tokens] / full.temperature))
    seen = np.bincount(draws(logits, count, seed=seed, **params), minlength=24)
    assert seen.sum() == seen[tokens].sum() == count
    chi_square = ((seen[tokens] - count * p) ** 2 / (count * p)).sum()
    freedom = len(tokens) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)  # four standard deviations


def test_the_batch_does_not_change_what_is_drawn() -> None:
    rng = np.random.default_rng(6)
    rows = np.stack([row_of("spread", 300, seed) for seed in range(4)])
    narrow = {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.2}
    settings: list[dict[str, Any]] = [{"temperature": 1.0}, {}, narrow]

    def group() -> list[Sampler]:
        return [sampler(300, seed=i, prompt=[i], **settings[i % 3]) for i in range(12)]

    alone = [[one.sample(rows[(i + step) % 4], 1 + step) for step in range(5)] for i, one in enumerate(group())]
    together, batch = group(), list[list[int]]()
    for step in range(5):
        order = rng.permutation(12)
        found = sample_batch([together[i] for i in order], rows, [1 + step] * 12, [(i + step) % 4 for i in order])
        batch.append([found[list(order).index(i)] for i in range(12)])
    assert [list(tokens) for tokens in zip(*batch, strict=True)] == alone


def test_seeds_indices_and_positions_draw_apart() -> None:
    logits = np.zeros((1, 2**16), np.float32)
    streams = list(product([0, 1, 2**32, 2**64 - 1], [0, 1], [0, 1, 2**32]))
    chosen = [sampler(2**16, seed=s, index=i, temperature=1).sample(logits[0], p) for s, i, p in streams]
    assert len(set(chosen)) == len(streams)


def test_repetition_reads_the_prompt_and_the_other_penalties_do_not() -> None:
    logits = [2.0, 1.5, -1.0]
    assert greedy(logits, prompt=[0], repetition_penalty=2.0) == 1
    assert greedy([-1.0, -1.5], prompt=[0], repetition_penalty=2.0) == 1  # a negative logit sinks too
    assert greedy(logits, prompt=[0], presence_penalty=2.0, frequency_penalty=2.0) == 0


def test_presence_counts_once_and_frequency_each_time() -> None:
    row = np.array([1.0, 0.3], np.float32)
    assert [one.sample(row, i) for one in [sampler(2, presence_penalty=0.5)] for i in range(4)] == [0, 0, 0, 0]
    assert [one.sample(row, i) for one in [sampler(2, frequency_penalty=0.5)] for i in range(4)] == [0, 0, 1, 0]


def test_bias_comes_before_penalties() -> None:
    assert greedy([1.0, 0.0], logit_bias={1: 100}) == 1
    assert greedy([1.0, 0.0], logit_bias={0: -100}) == 1
    assert greedy([0.0, 4.5], prompt=[0], repetition_penalty=2.0, logit_bias={0: 8}) == 1  # 8 / 2, not 0 / 2 + 8


def test_stop_ids_wait_for_min_tokens() -> None:
    row = np.array([3.0, 2.0, 1.0], np.float32)
    one = sampler(3, stop_ids=[0, 1], min_tokens=2, logit_bias={0: 50})
    assert [one.sample(row, i) for i in range(4)] == [2, 2, 0, 0]


@pytest.mark.parametrize(
    ("value", "where", "message"),
    [
        (math.nan, [70], "row 1: NaN at token 70"),
        (math.nan, [3], "row 1: NaN at token 3"),  # an id that is excluded
        (math.nan, [199], "row 1: NaN at token 199"),
        (math.inf, [5], r"row 1: \+inf at token 5"),
        (-math.inf, list(range(200)), "row 1: all are -inf"),
    ],
)
def test_a_row_without_an_answer_is_named_and_counts_for_nobody(value: float, where: list[int], message: str) -> None:
    good = np.stack([row_of("spread", 200, 7)] * 2)
    bad = good.copy()
    bad[1, where] = value

    def pair() -> list[Sampler]:
        settings: dict[str, Any] = {"stop_ids": [3], "min_tokens": 9, "frequency_penalty": 2.0, "presence_penalty": 2.0}
        return [sampler(200, **settings), sampler(200, temperature=1.0, **settings)]

    fresh, after = pair(), pair()
    with pytest.raises(PhaselineError, match=f"^no token can be sampled: logits of {message}"):
        sample_batch(after, bad, [0, 0])
    assert sample_batch(after, good, [0, 0]) == sample_batch(fresh, good, [0, 0])
    with pytest.raises(PhaselineError, match=f"^no log-probability exists: logits of {message}"):
        prompt_logprobs(bad, [0, 0], 2)


def one_above(low: float) -> Logits:
    """A single likely token; what the others weigh together still shows."""
    return np.where(np.arange(49152) == 77, 0, low).astype(np.float32)


@given(LOGITS, st.integers(0, 20), st.integers(0, 2**32))
@example(one_above(-15), 3, 77)
@example(one_above(-21), 3, 78)
@example(row_of("spread", 49152, 9), 20, 100)
def test_logprobs_are_those_of_the_softmax(logits: Logits, top: int, target: int) -> None:
    target %= len(logits)
    exact = reference.log_softmax(logits)
    found = Sampler.logprob(logits, target, top)
    best = np.argsort(-logits, kind="stable")[:top]
    best = best[np.isfinite(logits[best])]
    assert found.token == target
    assert [token for token, _ in found.top] == best.tolist()
    for token, logprob in [(target, found.logprob), *found.top]:
        assert logprob == pytest.approx(exact[token], abs=1e-5, rel=1e-6)


def test_prompt_logprobs_go_row_by_row() -> None:
    rows = np.stack([row_of("peaked", 2000, seed) for seed in range(5)])
    targets = [0, 1, 1999, 64, 63]
    found = prompt_logprobs(rows, targets, 3)
    assert found == [Sampler.logprob(row, target, 3) for row, target in zip(rows, targets, strict=True)]
    assert [one.token for one in found] == targets


def test_logits_of_the_reference_executor_are_taken_in_float64() -> None:
    logits = row_of("spread", 100, 8)
    assert greedy(logits.astype(np.float64)) == logits.argmax()
    assert Sampler.logprob(logits.astype(np.float64), 5, 2) == Sampler.logprob(logits, 5, 2)


@pytest.mark.parametrize("ids", [{"prompt": [9], "repetition_penalty": 2.0}, {"stop_ids": [9]}, {"logit_bias": {9: 1}}])
def test_ids_outside_the_vocabulary_are_refused(ids: dict[str, Any]) -> None:
    with pytest.raises(IndexError, match="token 9 is outside the vocabulary of 9"):
        sampler(9, **ids)
