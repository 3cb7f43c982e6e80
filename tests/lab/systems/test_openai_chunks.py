"""What chunks mean, in the dialects of many servers."""

import json
from typing import Any

import pytest

from phaseline.lab.systems.base import Piece, StreamFault
from phaseline.lab.systems.openai_chunks import ChunkReader
from phaseline.lab.systems.sse import ServerEvent
from phaseline.lab.trace import META


def read(*chunks: Any) -> list[Piece]:
    reader = ChunkReader()
    return [piece for chunk in chunks for piece in reader.read(ServerEvent(json.dumps(chunk)))]


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields}]}


def text(said: str, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"text": said, **fields.pop("choice", {})}], **fields}


@pytest.mark.parametrize(
    ("chunk", "pieces"),
    [
        (delta(role="assistant", content=""), []),
        (delta(role="assistant", content=None), []),
        (delta(content="a"), [Piece("text", None, "a")]),
        (delta(reasoning="a"), [Piece("reasoning", None, "a")]),
        (delta(reasoning="a", reasoning_content="a"), [Piece("reasoning", None, "a")]),  # the same, twice
        (delta(reasoning_content="", reasoning="a"), [Piece("reasoning", None, "a")]),
        (delta(reasoning_content="a", content="b"), [Piece("reasoning", None, "a"), Piece("text", None, "b")]),
        (delta(refusal="no"), [Piece("text", None, "no")]),
        (delta(tool_calls=[{"function": {"name": "f", "arguments": ""}}]), [Piece("tool", None, "f")]),
        (delta(tool_calls=[{"index": 0, "id": "x"}]), []),
        (delta(tool_calls=[]), []),
        ({"choices": [], "prompt_progress": {"processed": 5}}, []),
        ({"choices": None}, []),
        ({}, []),
        ({"error": None, "choices": []}, []),
        (text("a", choice={"token_ids": [1, 2]}), [Piece("text", 2, "a")]),
        (text("", choice={"token_ids": [1]}), [Piece("text", 1, "")]),  # half a character: a token, and no text
        (text("a", choice={"token_ids": []}), [Piece("text", 0, "a")]),  # held back text: no new token
        (text("a", choice={"logprobs": {"tokens": ["a", "b"]}}), [Piece("text", 2, "a")]),
        (text("a", choice={"logprobs": {"tokens": []}}), [Piece("text", None, "a")]),  # says nothing
        (text("a", choice={"logprobs": None, "token_ids": None}), [Piece("text", None, "a")]),
        (
            {"choices": [{"delta": {"reasoning": "a", "content": "b"}, "token_ids": [1, 2]}]},
            [Piece("reasoning", None, "a"), Piece("text", None, "b")],  # how they share the two is not told
        ),
    ],
)
def test_a_chunk(chunk: dict[str, Any], pieces: list[Piece]) -> None:
    assert read(chunk) == pieces


def counts(*totals: int | None) -> list[int | None]:
    """What is made of texts with these running counts."""
    chunks = [text("a", **({} if total is None else {"usage": {"completion_tokens": total}})) for total in totals]
    return [piece.tokens for piece in read(*chunks) if piece.channel != META]


def test_a_running_count_must_run_from_the_start() -> None:
    assert counts(1, 2, 5, 6) == [1, 1, 3, 1]
    assert counts(3) == [3]
    assert counts(None, None, 9) == [None, None, None]  # a total with the last text is no running count
    assert counts(1, None, 3) == [1, None, None]
    assert counts(0, 0, 7) == [None, None, None]  # nor are zeros that fill the field
    assert counts(4, 2, 5) == [4, None, None]
    progress = [text("é", timings={"predicted_n": n}) for n in (2, 4)]
    assert [piece.tokens for piece in read(*progress) if piece.channel != META] == [2, 2]


def test_a_running_count_goes_before_a_list() -> None:
    """llama.cpp lists one log-probability for a text that took several tokens."""
    first, *_ = read(text("é", choice={"logprobs": {"tokens": ["é"]}}, timings={"predicted_n": 2}))
    assert first.tokens == 2


def test_facts() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    told = {"prompt_tokens": 5, "output_tokens": 2, "cached_tokens": 4}
    assert read({"choices": [], "usage": usage}) == [Piece(META, facts=told)]
    assert read({"usage": usage | {"prompt_tokens_details": None}}) == [
        Piece(META, facts={"prompt_tokens": 5, "output_tokens": 2})
    ]
    last = {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}], "usage": None}
    assert read(last | {"timings": {"prompt_n": 3}}) == [
        Piece("text", None, "a"),
        Piece(META, facts={"finish_reason": "stop", "timings": {"prompt_n": 3}}),
    ]


def test_what_ends_a_stream() -> None:
    reader = ChunkReader()
    assert reader.read(ServerEvent("")) == [] and not reader.finished
    reader.read(ServerEvent(json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]})))
    assert reader.finished and not reader.closed
    assert reader.read(ServerEvent(" [DONE]")) == [] and reader.closed


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (ServerEvent('{"error": {"message": "out of memory", "code": 500}}'), "error in the stream: out of memory"),
        (ServerEvent('{"error": "out of memory"}'), "error in the stream: out of memory"),
        (ServerEvent('{"error": {"code": 500}}'), "500"),
        (ServerEvent('{"object": "error", "message": "out of memory"}'), "error in the stream: out of memory"),
        (ServerEvent('{"message": "out of memory"}', "error"), "error in the stream: out of memory"),
    ],
)
def test_an_error_in_the_stream(event: ServerEvent, said: str) -> None:
    with pytest.raises(StreamFault, match=said):
        ChunkReader().read(event)


@pytest.mark.parametrize(
    "garbage",
    [
        "{",
        "[]",
        "1",
        '"text"',
        "[" * 100_000,
        '{"choices": {}}',
        '{"choices": [1]}',
        '{"choices": [{"delta": "a"}]}',
        '{"choices": [{"delta": {"content": [1]}}]}',
        '{"choices": [{"text": 1}]}',
        '{"choices": [{"delta": {"tool_calls": [1]}}]}',
        '{"choices": [{"text": "a", "finish_reason": 1}]}',
        '{"choices": [{"text": "a", "token_ids": 3}]}',
        '{"usage": []}',
        '{"usage": {"prompt_tokens": -1}}',
        '{"usage": {"prompt_tokens": true}}',
        '{"usage": {"completion_tokens": "3"}}',
        '{"timings": 1}',
    ],
)
def test_garbage_is_refused(garbage: str) -> None:
    with pytest.raises(StreamFault, match="makes no sense"):
        ChunkReader().read(ServerEvent(garbage))
