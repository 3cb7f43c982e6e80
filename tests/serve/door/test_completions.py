"""`/v1/completions` as OpenAI's client has it: what the engine says, in the old shape."""

from typing import Any

import pytest
from openai import OpenAI

from phaseline.engine.engine import Engine, Generation
from phaseline.engine.types import SamplingParams, TokenLogprob
from support.server import Server

PROMPT = "The rate of the letters in a line"
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0}


def test_whole_answers_are_the_engines(openai: OpenAI, engine: Engine) -> None:
    prompt = engine.tokenizer.encode(PROMPT)  # type: ignore[union-attr]
    expected = engine.generate(prompt, SamplingParams(max_tokens=24))
    for same in (PROMPT, prompt, [PROMPT], [prompt]):
        answer = openai.completions.create(prompt=same, max_tokens=24, **GREEDY)  # type: ignore[arg-type]
        (choice,) = answer.choices
        assert choice.text == expected.text and choice.finish_reason == "length" and choice.logprobs is None
        assert answer.usage and answer.usage.prompt_tokens == len(prompt)
        assert (answer.usage.completion_tokens, answer.usage.total_tokens) == (24, 24 + len(prompt))
    assert answer.usage.prompt_tokens_details
    assert answer.usage.prompt_tokens_details.cached_tokens == len(prompt) // 32 * 32  # whole pages of the former


def test_streams_say_the_same_piece_by_piece(openai: OpenAI, engine: Engine) -> None:
    options = {"max_tokens": 24, "temperature": 0.9, "seed": 7}
    expected = engine.generate(PROMPT, SamplingParams(**options))  # type: ignore[arg-type]
    chunks = list(
        openai.completions.create(
            model="tiny",
            prompt=PROMPT,
            stream=True,
            stream_options={"include_usage": True},
            **options,  # type: ignore[arg-type]
        )
    )
    *pieces, last = chunks
    assert "".join(piece.choices[0].text for piece in pieces) == expected.text
    assert [piece.choices[0].finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert all(piece.usage is None for piece in pieces) and last.choices == []
    assert last.usage and last.usage.completion_tokens == 24
    assert len({chunk.id for chunk in chunks}) == 1 and len(pieces) > 6


def test_several_prompts_and_choices_are_counted_prompt_by_prompt(openai: OpenAI, engine: Engine) -> None:
    prompts = ["one and", "the other", "a third one"]
    params = SamplingParams(max_tokens=6, temperature=1.0, seed=3, n=2)
    expected = [completion.text for prompt in prompts for completion in engine.generate(prompt, params)]
    asked: dict[str, Any] = {"model": "tiny", "prompt": prompts, "n": 2, "seed": 3, "max_tokens": 6}
    answer = openai.completions.create(**asked)
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert [choice.text for choice in answer.choices] == expected
    assert answer.usage and answer.usage.completion_tokens == 36
    texts = [""] * 6
    for chunk in openai.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == expected


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_logprobs_scores_prompt_and_answer(openai: OpenAI, engine: Engine, stream: bool) -> None:
    expected = engine.generate(PROMPT, SamplingParams(max_tokens=5, logprobs=3, prompt_logprobs=3))
    choice = whole(openai, stream, prompt=PROMPT, max_tokens=5, logprobs=3, echo=True, **GREEDY)
    assert choice["text"] == PROMPT + expected.text
    scores = [*(expected.prompt_logprobs or ()), *expected.logprobs]
    check_logprobs(engine, choice["logprobs"], scores, choice["text"], expected)
    bare = whole(openai, stream, prompt=PROMPT, max_tokens=0, logprobs=3, echo=True, **GREEDY)
    assert bare["text"] == PROMPT and bare["finish_reason"] == "length"
    assert bare["logprobs"]["token_logprobs"] == choice["logprobs"]["token_logprobs"][:-5]


def test_logprobs_without_echo_are_of_the_answer_alone(openai: OpenAI, engine: Engine) -> None:
    expected = engine.generate(PROMPT, SamplingParams(max_tokens=5, logprobs=0))
    choice = whole(openai, False, prompt=PROMPT, max_tokens=5, logprobs=0, **GREEDY)
    check_logprobs(engine, choice["logprobs"], expected.logprobs, choice["text"], expected)


def check_logprobs(
    engine: Engine, found: Any, scores: list[TokenLogprob | None], text: str, generation: Generation
) -> None:
    tokenizer = engine.tokenizer
    assert tokenizer
    prompt = list(generation.prompt_token_ids) if len(scores) > len(generation.token_ids) else []
    spelt = [tokenizer.token_bytes(token) for token in (*prompt, *generation.token_ids)]
    assert len(scores) == len(spelt)
    assert found["tokens"] == [name(token) for token in spelt]
    assert found["token_logprobs"] == [score and score.logprob for score in scores]
    for best, score in zip(found["top_logprobs"], scores, strict=True):
        if score is None:
            assert best is None
        else:
            own = (score.token, score.logprob)
            assert best == {name(tokenizer.token_bytes(token)): value for token, value in [*score.top, own]}
    assert found["text_offset"][0] == 0
    for token, start in zip(spelt, found["text_offset"], strict=True):
        if token.isascii():
            assert text.startswith(token.decode(), start)


def name(spelt: bytes) -> str:
    try:
        return spelt.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelt)


def whole(openai: OpenAI, stream: bool, **asked: Any) -> dict[str, Any]:
    """The only choice of an answer, put together if it came in pieces."""
    if not stream:
        return openai.completions.create(**asked).choices[0].model_dump()  # type: ignore[no-any-return]
    pieces = [chunk.choices[0].model_dump() for chunk in openai.completions.create(**asked, stream=True)]
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {
        "text": "".join(piece["text"] for piece in pieces),
        "logprobs": {n: [entry for piece in pieces for entry in piece["logprobs"][n]] for n in names},
        "finish_reason": pieces[-1]["finish_reason"],
    }


def test_sixteen_tokens_are_the_default_and_sampling_is_not_greedy(openai: OpenAI, engine: Engine) -> None:
    answer = openai.completions.create(model="tiny", prompt=PROMPT, seed=11)
    assert answer.usage and answer.usage.completion_tokens == 16
    sampled = SamplingParams(max_tokens=16, temperature=1.0, seed=11)
    assert answer.choices[0].text == engine.generate(PROMPT, sampled).text != engine.generate(PROMPT).text[:16]


def test_every_setting_reaches_the_engine(server: Server, engine: Engine) -> None:
    """Each changes the answer; a name that were dropped on the way would leave it as it is."""
    base = {"max_tokens": 40, "temperature": 1.5, "seed": 5, "ignore_eos": True}
    (plain,) = ask(server, base)
    letters = [letter for letter in plain if letter.isascii() and letter.isalpha()]
    settings: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"top_p": 0.3},
        {"top_k": 3},
        {"min_p": 0.2},
        {"repetition_penalty": 1.8},
        {"presence_penalty": 2.0},
        {"frequency_penalty": 2.0},
        {"logit_bias": {"60": 50}},
        {"seed": -7},
        {"stop": letters[5]},
        {"stop": [letters[5], letters[1]]},
        {"stop_token_ids": list(range(60, 200))},
        {"min_tokens": 20, "stop_token_ids": list(range(60, 200))},
        {"max_tokens": 8},
        {"n": 2},
    ]
    seen = {(plain,)}
    for setting in settings:
        answer = ask(server, base | setting)
        assert answer == ask(server, base | setting) and answer not in seen, setting
        seen.add(answer)
        params = dict(base | setting)
        params["stop_ids"] = params.pop("stop_token_ids", ())
        params["seed"] %= 2**64
        params["logit_bias"] = {int(token): bias for token, bias in params.get("logit_bias", {}).items()}
        params["stop"] = [params["stop"]] if isinstance(params.get("stop"), str) else params.get("stop", ())
        expected = engine.generate(PROMPT, SamplingParams(**params))
        completions = expected if isinstance(expected, list) else [expected]
        assert answer == tuple(completion.text for completion in completions), setting


def ask(server: Server, settings: dict[str, Any]) -> tuple[str, ...]:
    answer = server.ask("/v1/completions", {"prompt": PROMPT, **settings})
    assert answer.status == 200, answer.body
    return tuple(choice["text"] for choice in answer.json["choices"])


def test_ids_and_timings_come_where_they_are_asked_for(server: Server, engine: Engine) -> None:
    expected = engine.generate(PROMPT, SamplingParams(max_tokens=6))
    body = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0, "return_token_ids": True}
    answer = server.ask("/v1/completions", body).json
    (choice,) = answer["choices"]
    assert choice["token_ids"] == expected.token_ids and choice["prompt_token_ids"] == expected.prompt_token_ids
    timings = answer["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == len(expected.prompt_token_ids)
    assert timings["predicted_n"] == 6 and timings["predicted_ms"] > 0 and timings["prompt_ms"] > 0
    assert timings["predicted_per_second"] == pytest.approx(6e3 / timings["predicted_ms"])
    assert timings["prompt_per_token_ms"] == pytest.approx(timings["prompt_ms"] / timings["prompt_n"])


def test_running_usage_counts_on_in_every_chunk(openai: OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = openai.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=5, stream=True, stream_options=options, logprobs=0
    )
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
    assert counts == [1, 2, 3, 4, 5, 5]


def test_progress_of_a_long_prompt_is_told_before_its_answer(server: Server) -> None:
    prompt = [40 + n % 200 for n in range(1500)]
    body = {"prompt": prompt, "max_tokens": 2, "stream": True, "return_progress": True, "cache_salt": "progress"}
    events = server.ask("/v1/completions", body).events
    told = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert [(p["processed"], p["total"], p["cache"]) for p in told] == [
        (512, 1500, 0),
        (1024, 1500, 0),
        (1500, 1500, 0),
    ]
    assert 0 < told[0]["time_ms"] < told[1]["time_ms"] < told[2]["time_ms"]
    assert all("prompt_progress" in event for event in events[:3]) and "timings" in events[-1]
    again = [e["prompt_progress"] for e in server.ask("/v1/completions", body).events if "prompt_progress" in e]
    assert [(p["processed"], p["cache"]) for p in again] == [(1500, 1472)]  # whole pages, and a token is always read


def test_a_salt_keeps_prefixes_apart(server: Server) -> None:
    def cached(**salt: str) -> int:
        body = {"prompt": [70 + n % 90 for n in range(100)], "max_tokens": 1, **salt}
        usage = server.ask("/v1/completions", body).json["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert [cached(), cached(), cached(cache_salt="a"), cached(cache_salt="b"), cached(cache_salt="a")] == [
        0,
        96,
        0,
        0,
        96,
    ]
