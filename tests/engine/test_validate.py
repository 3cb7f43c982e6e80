"""Validation: what is refused, in which words, and that what is in range passes."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline.engine.types import Grammar, Request, SamplingParams
from phaseline.engine.validate import validate
from phaseline.errors import CapacityError, RequestError

VOCAB, CONTEXT = 100, 32


def check(prompt: Any = (1, 2, 3), *, name: Any = "r", salt: Any = b"", **params: Any) -> None:
    validate(Request(name, prompt, replace(SamplingParams(), **params), salt), vocab=VOCAB, context=CONTEXT)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, "1", True, 10**400, [1]])
@pytest.mark.parametrize(
    "field", ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]
)
def test_numbers_are_finite_and_really_numbers(field: str, bad: Any) -> None:
    with pytest.raises(RequestError, match=f"^{field} = .*: must be a number .* at most"):
        check(**{field: bad})


@pytest.mark.parametrize("bad", [math.nan, 1.0, "1", True, -1, 10**400])
@pytest.mark.parametrize("field", ["max_tokens", "min_tokens", "top_k", "n", "seed", "logprobs", "prompt_logprobs"])
def test_counts_are_integers_from_zero(field: str, bad: Any) -> None:
    with pytest.raises(RequestError, match=f"^{field} = .*: must be an integer at least [01] and at most"):
        check(**{field: bad})


EDGES = {  # field: accepted values at the edges, refused values just past them
    "temperature": ([0, 0.0, 1000], [-1e-9, -1]),
    "top_k": ([0, 1, 2**31 - 1], [2**31]),
    "top_p": ([1e-9, 1, 1.0], [0, 0.0, 1.0001]),
    "min_p": ([0, 1], [-0.001, 1.001]),
    "repetition_penalty": ([1e-3, 1], [0, -1]),
    "presence_penalty": ([-2, 2], [-2.1, 2.1]),
    "frequency_penalty": ([-2, 2], [-2.1, 2.1]),
    "max_tokens": ([0, 1], [-1]),
    "min_tokens": ([0, 256], [257]),
    "seed": ([None, 0, 2**64 - 1], [-1, 2**64]),
    "n": ([1, 128], [0, 129]),
    "logprobs": ([None, 0, 20], [21]),
    "prompt_logprobs": ([None, 0, 20], [21]),
    "ignore_eos": ([True, False], [1, None]),
    "stop": ([(), ["a"], ["a"] * 16], ["abc", [""], ["a", ""], ["a"] * 17, [1], None, 5, {"a"}]),
    "grammar": (
        [None, Grammar("json_object"), Grammar("json_schema", " " * 2**16), Grammar("regex", " " * 2**12)],
        [
            {"kind": "regex", "text": "a"},
            "json_object",
            Grammar("json_object", "{}"),
            Grammar("gbnf", "a"),
            Grammar(["regex"], "a"),
            Grammar("regex", None),
            Grammar("regex", b"a"),
            Grammar("json_schema", " " * (2**16 + 1)),
            Grammar("regex", " " * (2**12 + 1)),
        ],
    ),
    "spelt_ids": ([(), [0, 99]], [[100], [-1], [True], ["1"], None]),
    "stop_ids": ([(), [0, 99]], [[100], [-1], [True], ["1"], [1.0], None, 5, "a", b"a", {5}]),
    "logit_bias": (
        [{}, {0: -100, 99: 100.0}],
        [
            {100: 0},
            {-1: 0},
            {True: 0},
            {"1": 0},
            {1: 101},
            {1: -math.inf},
            {1: math.nan},
            {1: None},
            None,
            5,
            [(1, 1.0)],
        ],
    ),
}


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, (good, _) in EDGES.items() for v in good])
def test_accepted_at_the_edge(field: str, value: Any) -> None:
    check(**{field: value})


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, (_, bad) in EDGES.items() for v in bad])
def test_refused_past_the_edge(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"^{field}.* = .*: must be .*"):
        check(**{field: value})


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], r"prompt = \[\]: must be at least one token id"),
        ([1, 100], r"prompt\[1\] = 100: must be an int from 0 to 99"),
        ([-1], r"prompt\[0\] = -1"),
        ([True], r"prompt\[0\] = True"),
        ([1, 2.0], r"prompt\[1\] = 2.0"),
        ("text", r"prompt = 'text': must be a list of token ids"),
        (b"text", r"prompt = b'text': must be a list of token ids"),
        (None, "prompt = None: must be a list of token ids"),
        (5, "prompt = 5: must be a list of token ids"),
    ],
)
def test_prompts_are_token_ids(prompt: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check(prompt)


@pytest.mark.parametrize("params", [None, {"max_tokens": 1}, 5])
def test_params_are_sampling_params(params: Any) -> None:
    with pytest.raises(RequestError, match=r"^params = .*: must be SamplingParams"):
        validate(Request("r", [1], params), vocab=VOCAB, context=CONTEXT)


@pytest.mark.parametrize(("name", "salt", "field"), [("", b"", "id"), (7, b"", "id"), ("r", "text", "salt")])
def test_identity_is_checked(name: Any, salt: Any, field: str) -> None:
    with pytest.raises(RequestError, match=f"^{field} = "):
        check(name=name, salt=salt)


@pytest.mark.parametrize(
    ("length", "max_tokens", "fits"), [(31, 1, True), (32, 0, True), (32, 1, False), (33, 0, False)]
)
def test_the_prompt_fits_the_context(length: int, max_tokens: int, fits: bool) -> None:
    if fits:
        check([1] * length, max_tokens=max_tokens)
    else:
        with pytest.raises(CapacityError, match=f"prompt of {length} tokens.*the context holds 32"):
            check([1] * length, max_tokens=max_tokens)


def test_a_message_is_one_short_line_whatever_the_value() -> None:
    with pytest.raises(RequestError) as refusal:
        check(stop=["x\n" * 10_000] * 100)
    assert len(str(refusal.value)) < 300 and "\n" not in str(refusal.value)


@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=CONTEXT - 1),
    params=st.builds(
        SamplingParams,
        max_tokens=st.integers(10, 1000),
        min_tokens=st.integers(0, 10),
        temperature=st.floats(0, 10),
        top_k=st.integers(0, 1000),
        top_p=st.floats(0, 1, exclude_min=True),
        min_p=st.floats(0, 1),
        repetition_penalty=st.floats(0, 3, exclude_min=True),
        presence_penalty=st.floats(-2, 2),
        frequency_penalty=st.floats(-2, 2),
        logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100)),
        seed=st.none() | st.integers(0, 2**64 - 1),
        stop=st.lists(st.text(min_size=1), max_size=16),
        stop_ids=st.lists(st.integers(0, VOCAB - 1)),
        ignore_eos=st.booleans(),
        n=st.integers(1, 128),
        logprobs=st.none() | st.integers(0, 20),
        prompt_logprobs=st.none() | st.integers(0, 20),
    ),
)
def test_everything_in_range_passes(prompt: list[int], params: SamplingParams) -> None:
    validate(Request("r", prompt, params), vocab=VOCAB, context=CONTEXT)
