"""The engine's doors: what a request brings, what is refused, and that the others never notice."""

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phaseline.engine.engine import Engine, Generation
from phaseline.engine.types import Delta, FinishReason, Request, SamplingParams, TokenLogprob
from phaseline.errors import CapacityError, PhaselineError, RequestError
from phaseline.execute.reference import ReferenceExecutor
from phaseline.families import model_program
from phaseline.files.gguf import open_gguf
from phaseline.program.step import Segment, Step, Want
from support.engines import PAGE, assert_idle, bystander, make_engine
from support.tiny import EOS, write_llama

CONTEXT, VOCAB = 256, 320


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("engine") / "tiny.gguf", context=CONTEXT, vocab=VOCAB)


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    return make_engine(model, kv_type="f32")


def params(max_tokens: int = 8, **others: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **others)


def letters(engine: Engine, **others: Any) -> SamplingParams:
    """The model may only write these letters; which, it decides."""
    assert engine.tokenizer is not None
    bias = {engine.tokenizer.encode(letter)[0]: 100.0 for letter in "abcdefghij"}
    return SamplingParams(**{"max_tokens": 40, "logit_bias": bias, **others})


def always(token: int, **others: Any) -> SamplingParams:
    return SamplingParams(logit_bias={token: 100.0}, **others)


# What comes back.


def test_text_ids_and_several_prompts(engine: Engine) -> None:
    assert engine.tokenizer is not None
    ids = engine.tokenizer.encode("the tent")
    words = engine.generate("the tent", params())
    others = engine.generate([5, 6, 7], params())
    assert (words.prompt_token_ids, words.token_ids) == (ids, engine.generate(ids, params()).token_ids)
    assert (len(words.token_ids), words.finish_reason) == (8, FinishReason.LENGTH)
    several = engine.generate(["the tent", [5, 6, 7]], params())
    assert [each.token_ids for each in several] == [words.token_ids, others.token_ids]
    assert len(words.token_times_s) == 8 and words.token_times_s == sorted(words.token_times_s)
    assert_idle(engine)


def test_ids_in_numpys_types(engine: Engine) -> None:
    expected = engine.generate([5, 6, 7], params()).token_ids
    row = np.array([5, 6, 7])
    for prompt in (row, row.astype(np.uint16), list(row), (5, np.int32(6), 7), range(5, 8)):
        answer = engine.generate(prompt, params())
        assert answer.token_ids == expected and {*map(type, answer.prompt_token_ids)} == {int}
    for prompts in ([row, row], np.stack([row, row]), [[5, 6, 7], row]):
        assert [each.token_ids for each in engine.generate(prompts, params())] == [expected] * 2


def test_an_engine_closes_with_its_block(model: Path) -> None:
    with make_engine(model) as engine:
        assert engine.context == engine.scheduler.context
        engine.generate([5, 6], params(1))
    with pytest.raises(PhaselineError, match="closed"):
        engine.generate([5, 6], params(1))


def test_deltas_join_to_the_answer(engine: Engine) -> None:
    seen: list[Delta] = []
    answer = engine.generate("the tent", letters(engine), on_delta=seen.append)
    assert "".join(delta.text for delta in seen) == answer.text != ""
    assert [token for delta in seen for token in delta.token_ids] == answer.token_ids
    assert [delta.finish_reason for delta in seen] == [None] * 39 + [FinishReason.LENGTH]


def test_completions_of_one_prompt_draw_apart_and_repeat(engine: Engine) -> None:
    sampled = params(12, n=3, seed=5, temperature=1.0)
    three: list[Generation] = engine.generate([5, 6, 7], sampled)
    assert len({tuple(each.token_ids) for each in three}) == 3
    assert [each.token_ids for each in engine.generate([5, 6, 7], sampled)] == [each.token_ids for each in three]
    alone = engine.generate([5, 6, 7], params(12, seed=5, temperature=1.0))
    assert alone.token_ids == three[0].token_ids
    greedy = engine.generate([5, 6, 7], params(12, n=3))
    assert len({tuple(each.token_ids) for each in greedy}) == 1


def test_without_a_seed_each_request_draws_its_own(engine: Engine) -> None:
    drawn = [engine.generate([5, 6, 7], params(12, temperature=1.0)).token_ids for _ in range(2)]
    assert drawn[0] != drawn[1]


def test_the_prefix_cache_serves_the_second(engine: Engine) -> None:
    engine.scheduler.table.clear_cache()
    prompt = [9] * (2 * PAGE + 1)
    first, second = engine.generate(prompt, params()), engine.generate(prompt, params())
    assert (first.cached_tokens, second.cached_tokens) == (0, 2 * PAGE)
    assert first.token_ids == second.token_ids


# Log-probabilities.


def check_logprob(given: TokenLogprob, token: int, exact: np.ndarray, top: int) -> None:
    assert given.token == token
    assert given.logprob == pytest.approx(exact[token], abs=1e-4)
    assert [value for _, value in given.top] == pytest.approx(np.sort(exact)[::-1][:top], abs=1e-4)
    assert [exact[id] for id, _ in given.top] == pytest.approx([value for _, value in given.top], abs=1e-4)


@pytest.mark.parametrize("others", [{}, {"temperature": 2.0, "seed": 1, "repetition_penalty": 2.0}])
def test_logprobs_are_of_the_models_own_distribution(model: Path, engine: Engine, others: dict[str, Any]) -> None:
    prompt = [int(t) for t in np.random.default_rng(0).integers(2, VOCAB, 50)]
    answers = engine.generate(prompt, params(10, logprobs=3, prompt_logprobs=2, n=2, **others))
    for answer in answers:
        tokens = [*prompt, *answer.token_ids]
        with open_gguf(model) as file:
            reference = ReferenceExecutor(file, model_program(file)[1], 2, np.float64)
        logits = reference.forward(Step([Segment(0, 0, tokens[:-1], Want.ALL)]), np.arange(2, dtype=np.int32)[None])
        exact = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))  # row p tells of token p + 1
        assert answer.prompt_logprobs[0] is None and len(answer.prompt_logprobs) == len(prompt)
        for p, given in enumerate(answer.prompt_logprobs[1:]):
            check_logprob(given, tokens[p + 1], exact[p], 2)
        assert len(answer.logprobs) == 10
        for p, given in enumerate(answer.logprobs, len(prompt) - 1):
            check_logprob(given, tokens[p + 1], exact[p], 3)


def test_zero_alternatives_and_no_tokens_at_all(engine: Engine) -> None:
    answer = engine.generate([5, 6, 7], params(0, prompt_logprobs=0))
    assert (answer.token_ids, answer.finish_reason) == ([], FinishReason.LENGTH)
    assert [given and given.token for given in answer.prompt_logprobs] == [None, 6, 7]
    assert all(given.top == [] for given in answer.prompt_logprobs[1:])
    plain = engine.generate([5, 6, 7], params(2))
    assert plain.prompt_logprobs is None and plain.logprobs == []


# Reasons to stop.


@pytest.mark.parametrize("at", [1, 7, 20])
def test_a_stop_string_across_tokens_ends_the_answer_before_it(engine: Engine, at: int) -> None:
    whole = engine.generate("a", letters(engine)).text
    assert len(whole) == 40  # one token, one letter
    stop = whole[at : at + 3]
    seen: list[str] = []
    answer = engine.generate("a", letters(engine, stop=["nowhere", stop]), on_delta=lambda d: seen.append(d.text))
    assert answer.text == "".join(seen) == whole[: whole.index(stop)]
    assert (answer.finish_reason, len(answer.token_ids)) == (FinishReason.STOP, whole.index(stop) + 3)
    assert_idle(engine)


def test_half_a_stop_string_is_given_out_in_the_end(engine: Engine) -> None:
    whole = engine.generate("a", letters(engine)).text
    answer = engine.generate("a", letters(engine, stop=[whole[-2:] + "z"]))
    assert (answer.text, answer.finish_reason) == (whole, FinishReason.LENGTH)


def test_a_stop_id_ends_the_answer_and_is_not_text(engine: Engine) -> None:
    whole = engine.generate("a", letters(engine))
    stop = whole.token_ids[9]
    first = whole.token_ids.index(stop)
    answer = engine.generate("a", letters(engine, stop_ids=[stop]))
    assert answer.token_ids == whole.token_ids[: first + 1]
    assert (answer.text, answer.finish_reason) == (whole.text[:first], FinishReason.STOP)


def test_the_end_of_sequence_ends_unless_ignored(engine: Engine) -> None:
    ended = engine.generate([5], always(EOS, max_tokens=6))
    assert (ended.token_ids, ended.text, ended.finish_reason) == ([EOS], "", FinishReason.STOP)
    ignored = engine.generate([5], always(EOS, max_tokens=6, ignore_eos=True))
    assert (ignored.token_ids, ignored.finish_reason) == ([EOS] * 6, FinishReason.LENGTH)
    last = engine.generate([5], always(EOS, max_tokens=1))
    assert (last.token_ids, last.finish_reason) == ([EOS], FinishReason.STOP)


def test_stop_strings_count_only_after_min_tokens(engine: Engine) -> None:
    assert engine.tokenizer is not None
    (letter,) = engine.tokenizer.encode("a")
    answer = engine.generate([5], always(letter, max_tokens=20, min_tokens=5, stop=["aa"]))
    assert (answer.text, answer.finish_reason) == ("aaaaa", FinishReason.STOP)
    assert len(answer.token_ids) == 7


@pytest.mark.parametrize("others", [{}, {"temperature": 1.0, "seed": 2}])
def test_no_end_is_drawn_before_min_tokens(engine: Engine, others: dict[str, Any]) -> None:
    answer = engine.generate([5], always(EOS, max_tokens=20, min_tokens=5, stop_ids=[7], **others))
    assert answer.token_ids[5:] == [EOS]
    assert not {EOS, 7} & set(answer.token_ids[:5])


def test_zero_and_one_token(engine: Engine) -> None:
    none, one = engine.generate([5, 6], params(0)), engine.generate([5, 6], params(1))
    assert (none.token_ids, none.text, none.finish_reason) == ([], "", FinishReason.LENGTH)
    assert (len(one.token_ids), one.finish_reason) == (1, FinishReason.LENGTH)
    assert_idle(engine)


@pytest.mark.parametrize(
    ("length", "max_tokens", "brings"), [(CONTEXT - 1, 9, 1), (CONTEXT, 0, 0), (CONTEXT - 4, 9, 4)]
)
def test_the_context_ends_an_answer(engine: Engine, length: int, max_tokens: int, brings: int) -> None:
    answer = engine.generate([5] * length, params(max_tokens, ignore_eos=True))
    assert (len(answer.token_ids), answer.finish_reason) == (brings, FinishReason.LENGTH)


# What is refused, while somebody else is served.


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 1])
def test_a_prompt_beyond_the_context_is_refused(engine: Engine, length: int) -> None:
    with bystander(engine), pytest.raises(CapacityError, match=f"prompt of {length} tokens.*context holds {CONTEXT}"):
        engine.generate([5] * length)


def test_a_prompt_larger_than_the_pool_is_refused_and_the_largest_is_served(model: Path) -> None:
    engine = make_engine(model, pages=4)
    with bystander(engine), pytest.raises(CapacityError, match=r"page pool \(4 pages of 32\) holds 128"):
        engine.submit(Request("large", [5] * 128))
    with bystander(engine):
        engine.submit(Request("fits", [5] * 127))


@pytest.mark.parametrize("prompt", [[], "", [5, VOCAB], [-1], [5, True], [1.5], np.array([5.0, 6.0]), [5, "a"], [[]]])
def test_prompts_that_are_not_token_ids_are_refused(engine: Engine, prompt: Any) -> None:
    with bystander(engine), pytest.raises(RequestError, match="prompt"):
        engine.generate(prompt)


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        5,
        b"text",
        bytearray(b"text"),
        [b"text"],
        {5},
        {5: 6},
        (t for t in [5]),
        np.array(5),
        ["a", 5],
        [[5], None],
    ],
)
def test_prompts_of_other_types_are_refused(engine: Engine, prompt: Any) -> None:
    with bystander(engine), pytest.raises(RequestError, match=r"^prompt = .*: must be text, a list or array"):
        engine.generate(prompt)
    with bystander(engine), pytest.raises(RequestError, match=r"^prompt"):
        asyncio.run(anext(engine.stream(prompt)))
    with bystander(engine), pytest.raises(RequestError, match=r"^prompt"):
        engine.submit(Request("z", prompt))


@pytest.mark.parametrize("settings", [{}, {"max_tokens": 4}, 5, "text"])
def test_settings_of_other_types_are_refused(engine: Engine, settings: Any) -> None:
    with bystander(engine), pytest.raises(RequestError, match=r"^params = "):
        engine.generate([5, 6], settings)
    with bystander(engine), pytest.raises(RequestError, match=r"^params = "):
        asyncio.run(anext(engine.stream([5, 6], settings)))
    with bystander(engine), pytest.raises(RequestError, match=r"^params = "):
        engine.submit(Request("z", [5, 6], settings))


def test_an_immense_text_is_refused_before_it_is_tokenised(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "the tent " * 200_000
    monkeypatch.setattr(type(engine.tokenizer), "encode", lambda *_: pytest.fail("tokenised"))
    for door in (engine.generate, lambda text: asyncio.run(anext(engine.stream(text)))):
        with pytest.raises(CapacityError, match=rf"prompt of at least \d+ tokens.*the context holds {CONTEXT}"):
            door(text)


@pytest.mark.parametrize(
    "absurd",
    [
        {"temperature": math.nan},
        {"temperature": -1.0},
        {"top_p": math.inf},
        {"top_k": -1},
        {"min_p": 2},
        {"repetition_penalty": 0},
        {"logit_bias": {VOCAB: 1.0}},
        {"logit_bias": {5: math.nan}},
        {"stop_ids": [VOCAB]},
        {"stop": [""]},
        {"max_tokens": -1},
        {"min_tokens": 9, "max_tokens": 8},
        {"seed": -1},
        {"logprobs": 10**9},
        {"n": 0},
        {"n": "3"},
        {"n": 10**12},
    ],
)
def test_absurd_settings_are_refused_by_name(engine: Engine, absurd: dict[str, Any]) -> None:
    with bystander(engine), pytest.raises(RequestError, match=f"^{next(iter(absurd))}"):
        engine.generate([5, 6], SamplingParams(**absurd))


def test_extreme_but_legal_settings_are_served(engine: Engine) -> None:
    with bystander(engine):
        assert len({*engine.generate([5, 6], params(20, temperature=1000.0, seed=4)).token_ids}) > 10
        for legal in ({"temperature": 1000.0}, {"top_p": 1e-300, "temperature": 1.0}, {"logit_bias": {5: -100.0}}):
            assert len(engine.generate([5, 6], params(4, ignore_eos=True, **legal)).token_ids) == 4


def test_an_id_in_use_is_refused_and_its_owner_unharmed(engine: Engine) -> None:
    with bystander(engine), pytest.raises(RequestError, match="'bystander' is in use"):
        engine.submit(Request("bystander", [5, 6]))


def test_one_bad_prompt_of_several_cancels_the_rest(engine: Engine) -> None:
    with bystander(engine), pytest.raises(RequestError, match="prompt"):
        engine.generate([[5, 6], [VOCAB]])


def test_more_completions_than_seats_are_refused(engine: Engine) -> None:
    with bystander(engine), pytest.raises(CapacityError, match=r"n = 5.*max_running = 4"):
        engine.generate([5, 6], params(n=5))


def test_what_needs_a_tokenizer_says_so(model: Path) -> None:
    engine = make_engine(model, tokenizer=False)
    answer = engine.generate([5, 6], params(4))
    assert (len(answer.token_ids), answer.text) == (4, "")
    for refused in (
        lambda: engine.generate("text"),
        lambda: engine.generate([5, 6], params(stop=["a"])),
        lambda: engine.chat_prompt([{"role": "user", "content": "hello"}]),
    ):
        with pytest.raises(RequestError, match="tokenizer"):
            refused()
