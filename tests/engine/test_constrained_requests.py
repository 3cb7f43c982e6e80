"""Requests with a grammar beside requests without one: each gets what it would alone, and what it asked for."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaseline.engine.engine import Engine, Generation
from phaseline.engine.load import load
from phaseline.engine.types import Delta, FinishReason, Grammar, Request, SamplingParams
from phaseline.errors import PhaselineError, RequestError
from support.engines import assert_idle, bystander, drain, make_engine, meddler, tokens_of
from support.tiny import EOS, write_llama

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["café", "☃", "plain"]}, "maxItems": 2},
        "score": {"type": "number", "minimum": 0, "maximum": 1},
        "ok": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    },
    "required": ["name", "age", "ok"],
    "additionalProperties": False,
}
LETTERS = Grammar("regex", "[a-j]{20}")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("constrained") / "tiny.gguf", context=4096, vocab=320)


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    return make_engine(model, max_running=8, pages=300)


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Engine:
    return load(smollm2_path, context=512, max_running=8, threads=2)


def schema(value: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(value))


def generate(engine: Engine, grammar: Grammar | None, prompt: Any = "the tent", **params: Any) -> Generation:
    asked = SamplingParams(**{"max_tokens": 2000, "grammar": grammar, **params})
    answer: Generation = engine.generate(prompt, asked)
    return answer


# What a real model writes.


def test_a_real_models_objects_validate_beside_free_requests(smollm2: Engine) -> None:
    ask = smollm2.chat_prompt([{"role": "user", "content": "Describe a person as JSON."}])
    free = [SamplingParams(max_tokens=24, seed=n, temperature=0.8 * (n % 2), ignore_eos=True) for n in range(3)]
    alone = [smollm2.generate(ask, params).token_ids for params in free]
    for temperature in (0.0, 0.7, 1.5):
        for n, params in enumerate(free):
            smollm2.submit(Request(f"free {n}", ask, params))
        for n in range(4):
            asked = SamplingParams(max_tokens=300, seed=n, temperature=temperature, grammar=schema(PERSON))
            smollm2.submit(Request(f"person {n}", ask, asked))
        deltas = drain(smollm2)
        assert [tokens_of(deltas, f"free {n}") for n in range(3)] == alone
        for n in range(4):
            text = "".join(delta.text for delta in deltas if delta.request_id == f"person {n}")
            assert jsonschema_rs.is_valid(PERSON, json.loads(text)), text
            assert deltas_of(deltas, f"person {n}")[-1].finish_reason is FinishReason.STOP
    assert_idle(smollm2)


def test_a_real_model_answers_in_the_form_asked_for(smollm2: Engine) -> None:
    ask = smollm2.chat_prompt([{"role": "user", "content": "Give me a person as JSON: name, age, city."}])
    cities = Grammar("choice", '[" Berlin", " Paris", " Rome"]')
    assert generate(smollm2, cities, "The capital of France is").text == " Paris"
    answer = generate(smollm2, Grammar("json_object"), ask, max_tokens=200)
    assert answer.finish_reason is FinishReason.STOP and isinstance(json.loads(answer.text), dict)


def deltas_of(deltas: list[Delta], request_id: str) -> list[Delta]:
    return [delta for delta in deltas if delta.request_id == request_id]


# What a random model writes.


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), temperature=st.sampled_from([0.0, 0.8, 3.0]))
def test_a_random_models_objects_validate(engine: Engine, seed: int, temperature: float) -> None:
    prompt = np.random.default_rng(seed).integers(2, 320, 5)
    answer = generate(engine, schema(PERSON), prompt, seed=seed, temperature=temperature)
    assert answer.finish_reason is FinishReason.STOP
    assert jsonschema_rs.is_valid(PERSON, json.loads(answer.text))


def test_completions_of_one_prompt_each_keep_to_the_grammar(engine: Engine) -> None:
    same: dict[str, Any] = {"seed": 4, "temperature": 2.0}
    several: Any = generate(engine, schema(PERSON), n=4, **same)
    assert len({each.text for each in several}) == 4
    assert all(jsonschema_rs.is_valid(PERSON, json.loads(each.text)) for each in several)
    assert several[0].token_ids == generate(engine, schema(PERSON), **same).token_ids


def test_a_constraint_made_beforehand_serves_as_well(engine: Engine) -> None:
    params = SamplingParams(max_tokens=2000, grammar=schema(PERSON), seed=9, temperature=1.0, n=2)
    constraint = engine.constrain(params)
    engine.submit(Request("before", [5, 6], params), constraint=constraint)
    deltas = drain(engine)
    expected: Any = engine.generate([5, 6], params)
    for index, each in enumerate(expected):
        assert [t for d in deltas if d.index == index for t in d.token_ids] == each.token_ids
    assert engine.constrain(SamplingParams()) is None
    with pytest.raises(RequestError, match="min_tokens"):
        engine.constrain(SamplingParams(max_tokens=1, min_tokens=2))


def test_preemption_changes_nothing(model: Path) -> None:
    grammar = Grammar("regex", "[a-j]{40}( [k-t]{3}){10}")
    requests = [
        Request(
            str(n), list(range(10, 40 + n)), SamplingParams(max_tokens=200, grammar=grammar, seed=n, temperature=1.5)
        )
        for n in range(3)
    ]
    roomy, tight = make_engine(model, pages=64), make_engine(model, pages=5)
    with roomy, tight:
        alone = [roomy.generate(r.prompt, r.params).token_ids for r in requests]
        for request in requests:
            tight.submit(request)
        deltas = drain(tight)
        assert tight.scheduler.preemptions
        assert [tokens_of(deltas, r.id) for r in requests] == alone
        for request in requests:
            text = "".join(delta.text for delta in deltas_of(deltas, request.id))
            assert re.fullmatch(grammar.text, text)
        assert_idle(tight)


# How it ends.


def test_an_answer_ends_where_the_grammar_does_whatever_else_is_asked(engine: Engine) -> None:
    for others in ({}, {"ignore_eos": True}, {"min_tokens": 500}, {"ignore_eos": True, "min_tokens": 500}):
        answer = generate(engine, LETTERS, **others)
        assert re.fullmatch(LETTERS.text, answer.text) and answer.finish_reason is FinishReason.STOP
        assert EOS not in answer.token_ids
    to_the_token = generate(engine, LETTERS, max_tokens=len(generate(engine, LETTERS).token_ids))
    assert to_the_token.finish_reason is FinishReason.STOP
    for others in ({"ignore_eos": True}, {"min_tokens": 5}):
        empty = generate(engine, Grammar("choice", '[""]'), **others)
        assert (empty.text, empty.token_ids, empty.finish_reason) == ("", [EOS], FinishReason.STOP)


def test_an_open_end_waits_for_its_token(engine: Engine) -> None:
    open_end = Grammar("regex", "[a-j]*")
    eager = {EOS: 100.0}
    assert generate(engine, open_end, logit_bias=eager).token_ids == [EOS]
    assert generate(engine, Grammar("regex", "[a-j]{3,}"), logit_bias=eager).text.isalpha()
    at_least = generate(engine, open_end, logit_bias=eager, min_tokens=5)
    assert len(at_least.token_ids) == 6 and at_least.token_ids[-1] == EOS
    never = generate(engine, open_end, logit_bias=eager, ignore_eos=True, max_tokens=30)
    assert (len(never.token_ids), never.finish_reason) == (30, FinishReason.LENGTH)
    assert re.fullmatch("[a-j]+", never.text)


def test_max_tokens_cuts_it(engine: Engine) -> None:
    whole, cut = generate(engine, schema(PERSON)), generate(engine, schema(PERSON), max_tokens=7)
    assert cut.finish_reason is FinishReason.LENGTH and cut.token_ids == whole.token_ids[:7]
    assert generate(engine, schema(PERSON), max_tokens=0).finish_reason is FinishReason.LENGTH


def test_stop_strings_and_stop_ids_cut_it(engine: Engine) -> None:
    whole = generate(engine, LETTERS)
    middle = whole.text[8:10]
    cut = generate(engine, LETTERS, stop=[middle])
    assert cut.text == whole.text[: whole.text.index(middle)] and cut.finish_reason is FinishReason.STOP
    third = generate(engine, LETTERS, stop_ids=[whole.token_ids[2]])
    first = whole.token_ids.index(whole.token_ids[2])
    assert third.token_ids == whole.token_ids[: first + 1] and third.finish_reason is FinishReason.STOP


def test_logprobs_are_those_of_the_model_not_of_the_grammar(engine: Engine) -> None:
    free, held = (generate(engine, g, logprobs=5, max_tokens=1).logprobs[0] for g in (None, LETTERS))
    assert held.top == free.top and held.token not in dict(held.top)
    scored = generate(engine, LETTERS, max_tokens=1, logprobs=5, prompt_logprobs=2)
    assert scored.logprobs[0] == held and scored.prompt_logprobs


# What goes wrong.


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (schema({"type": "colour"}), "colour"),
        (Grammar("regex", "("), "regex"),
        (Grammar("json_object", "{}"), r"grammar\.text = .*at most 0 characters"),
        (Grammar("yaml"), r"grammar\.kind = 'yaml': must be one of json_object"),  # type: ignore[arg-type]
        ("json", "grammar = 'json': must be a Grammar"),
    ],
)
def test_what_is_malformed_is_refused_and_nobody_notices(engine: Engine, grammar: Any, reason: str) -> None:
    with bystander(engine):
        with pytest.raises(RequestError, match=reason):
            generate(engine, grammar)
        with pytest.raises(RequestError, match=reason):
            engine.submit(Request("bad", [5], SamplingParams(grammar=grammar)))


def test_a_grammar_that_gets_too_complex_fails_its_own_request(engine: Engine) -> None:
    with bystander(engine) as deltas:
        hopeless = Grammar("regex", r"(\p{L}{1,50}){1,50}")
        engine.submit(Request("hopeless", [7, 8, 9], SamplingParams(max_tokens=100, grammar=hopeless)))
        with pytest.raises(RequestError, match=r"^grammar regex: .*too many"):
            while engine.has_work:
                deltas += engine.step()


def test_a_row_without_any_allowed_token_fails_its_own_request(engine: Engine) -> None:
    assert engine.tokenizer is not None
    letters = [engine.tokenizer.encode(letter)[0] for letter in "xyz"]
    with bystander(engine) as deltas:
        engine.submit(Request("nothing", [7, 8, 9], SamplingParams(max_tokens=9, grammar=Grammar("regex", "[xyz]"))))

        def without_letters(logits: Any) -> Any:
            logits[-1, letters] = -np.inf
            return logits

        meddler(engine).after = without_letters
        try:
            with pytest.raises(PhaselineError, match=r"no token can be sampled: .*all are -inf"):
                while engine.has_work:
                    deltas += engine.step()
        finally:
            meddler(engine).after = lambda logits: logits


def test_a_cancelled_request_leaves_nothing(engine: Engine) -> None:
    with bystander(engine) as deltas:
        engine.submit(Request("left", [7, 8], SamplingParams(max_tokens=2000, grammar=schema(PERSON), n=2)))
        for _ in range(4):
            deltas += engine.step()
        engine.abort("left")


def test_without_a_tokenizer_no_grammar_can_be_followed(model: Path) -> None:
    with make_engine(model, tokenizer=False) as bare, pytest.raises(RequestError, match="a grammar needs a tokenizer"):
        bare.generate([5, 6], SamplingParams(grammar=LETTERS))
