"""`/v1/chat/completions` as OpenAI's client has it."""

from typing import Any

import pytest
from openai import OpenAI

from phaseline.engine.engine import Engine
from phaseline.engine.types import SamplingParams
from support.server import Server

MESSAGES: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is the sea?"}]
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0}


def test_whole_answers_are_the_engines(openai: OpenAI, engine: Engine) -> None:
    expected = engine.generate(engine.chat_prompt(MESSAGES), SamplingParams(max_tokens=24))
    answer = openai.chat.completions.create(messages=MESSAGES, max_tokens=24, **GREEDY)
    (choice,) = answer.choices
    assert answer.object == "chat.completion"
    assert choice.message.role == "assistant" and choice.message.content == expected.text
    assert choice.message.tool_calls is None and choice.finish_reason == "length" and choice.logprobs is None
    assert answer.usage and answer.usage.completion_tokens == 24
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)


def test_streams_say_the_same_piece_by_piece(openai: OpenAI, engine: Engine) -> None:
    expected = engine.generate(
        engine.chat_prompt(MESSAGES), SamplingParams(max_tokens=24, temperature=0.8, seed=1, n=2)
    )
    chunks = list(
        openai.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            max_completion_tokens=24,
            temperature=0.8,
            seed=1,
            n=2,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    *pieces, last = chunks
    for index, completion in enumerate(expected):
        own = [piece.choices[0] for piece in pieces if piece.choices[0].index == index]
        assert "".join(piece.delta.content or "" for piece in own) == completion.text
        assert [piece.delta.role for piece in own] == ["assistant"] + [None] * (len(own) - 1)
        assert [piece.finish_reason for piece in own] == [None] * (len(own) - 1) + ["length"]
    assert last.choices == [] and last.usage and last.usage.completion_tokens == 48
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_of_the_tokens_in_the_text(openai: OpenAI, engine: Engine, stream: bool) -> None:
    expected = engine.generate(engine.chat_prompt(MESSAGES), SamplingParams(max_tokens=6, logprobs=2))
    asked: Any = {"messages": MESSAGES, "max_tokens": 6, "logprobs": True, "top_logprobs": 2, **GREEDY}
    if stream:
        chunks = openai.chat.completions.create(**asked, stream=True)
        found = [entry for c in chunks if c.choices[0].logprobs for entry in c.choices[0].logprobs.content or ()]
    else:
        logprobs = openai.chat.completions.create(**asked).choices[0].logprobs
        assert logprobs and logprobs.content
        found = logprobs.content
    tokenizer = engine.tokenizer
    assert tokenizer
    for entry, score in zip(found, expected.logprobs, strict=True):
        assert entry.bytes is not None and bytes(entry.bytes) == tokenizer.token_bytes(score.token)
        assert entry.token == bytes(entry.bytes).decode(errors="replace") and entry.logprob == score.logprob
        assert [(bytes(top.bytes or ()), top.logprob) for top in entry.top_logprobs] == [
            (tokenizer.token_bytes(token), logprob) for token, logprob in score.top
        ]


def test_parts_of_text_are_lines_and_null_is_nothing(openai: OpenAI, engine: Engine) -> None:
    parts: Any = [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "three"},
    ]
    plain = [{"role": "user", "content": "one\ntwo"}, {"role": "assistant", "content": ""}, parts[2]]
    expected = engine.generate(engine.chat_prompt(plain), SamplingParams(max_tokens=8))
    answer = openai.chat.completions.create(messages=parts, max_tokens=8, **GREEDY)
    assert answer.choices[0].message.content == expected.text


def test_ids_come_where_they_are_asked_for(server: Server, engine: Engine) -> None:
    prompt = engine.chat_prompt(MESSAGES)
    expected = engine.generate(prompt, SamplingParams(max_tokens=5)).token_ids
    body = {"messages": MESSAGES, "max_tokens": 5, "temperature": 0, "return_token_ids": True}
    answer = server.ask("/v1/chat/completions", body).json
    assert answer["prompt_token_ids"] == prompt and answer["choices"][0]["token_ids"] == expected
    events = server.ask("/v1/chat/completions", body | {"stream": True}).events
    assert [event.get("prompt_token_ids") for event in events] == [prompt] + [None] * (len(events) - 1)
    assert [token for event in events for token in event["choices"][0]["token_ids"]] == expected


def test_an_answer_may_fill_the_context_unless_told_otherwise(openai: OpenAI, engine: Engine) -> None:
    stop = engine.generate(engine.chat_prompt(MESSAGES), SamplingParams(max_tokens=300)).text[250]
    answer = openai.chat.completions.create(messages=MESSAGES, stop=stop, **GREEDY)
    assert answer.usage and answer.choices[0].finish_reason == "stop"
    expected = engine.generate(engine.chat_prompt(MESSAGES), SamplingParams(max_tokens=20000, stop=[stop]))
    assert answer.choices[0].message.content == expected.text
