"""What is decoded and what is not, by how much is in it; and that counting it counts right."""

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaseline._native import measure_json
from phaseline.serve.door.json_body import decode
from phaseline.serve.door.problems import Problem
from phaseline.serve.door.protocol import ChatBody, CompletionBody
from support.turns import others_run_during

CONTEXT = 8192
COMPLETION, CHAT = msgspec.json.Decoder(CompletionBody), msgspec.json.Decoder(ChatBody)
TABLE = "".join(f'{n},"a ""quoted"" name",{n / 7}\r\n' for n in range(30_000))
DOCUMENT = json.dumps([{"id": n, "tags": ["x", "y"], "at": {"x": n / 3, "y": None}} for n in range(15_000)])

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def sizes(text: bytes) -> dict[str, int]:
    """What a JSON text holds, by patterns over the whole of it."""
    strings = [found[1:-1] for found in re.findall(rb'"(?:[^"\\]|\\.)*"', text)]
    rest = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", text)
    values = re.findall(rb"[^\[\]{},: \t\r\n]+", rest)
    return {
        "openings": rest.count(b"[") + rest.count(b"{"),
        "strings": len(strings),
        "escapes": sum(len(re.findall(rb"\\.", string)) for string in strings),
        "longest_string": max(map(len, strings), default=0),
        "values": len(values),
        "long_values": sum(len(value) > 20 for value in values),
        "longest_value": max(map(len, values), default=0),
        "blanks": sum(map(rest.count, (b" ", b"\t", b"\r", b"\n"))),
        "beyond_ascii": sum(byte >= 0x80 for byte in text),
    }


@given(JSON, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_what_is_in_a_text_is_counted(value: Any, ascii: bool, indent: Any) -> None:
    text = json.dumps(value, ensure_ascii=ascii, indent=indent).encode(errors="replace")
    counted = measure_json(text)
    assert {name: getattr(counted, name) for name in sizes(text)} == sizes(text)
    assert {name: getattr(measure_json(bytearray(text)), name) for name in sizes(text)} == sizes(text)


@settings(max_examples=300)
@given(st.lists(st.sampled_from([b'"', b"\\", b"[", b"1", b" ", b",", b"\xff", b"x" * 16])).map(b"".join))
def test_any_bytes_are_counted(text: bytes) -> None:
    counted = measure_json(text)
    assert counted.strings <= text.count(b'"') and counted.longest_string <= len(text)
    assert counted.escapes <= text.count(b"\\") and counted.values + counted.openings + counted.blanks <= len(text)


def test_other_threads_run_while_it_is_counted() -> None:
    text = bytearray(b" " * 20_000_000)
    assert others_run_during(lambda: measure_json(text))


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "word " * 800_000},
        {"prompt": DOCUMENT},
        {"prompt": [49_000] * CONTEXT},
        {"prompt": [[49_000] * 1024] * 200},
        {"prompt": ["a prompt of some words"] * 20_000},
        {"prompt": "x", "logit_bias": {str(id): -100 for id in range(49_152)}},
    ],
)
def test_what_honest_clients_send_is_decoded(body: Any) -> None:
    assert decode(COMPLETION, json.dumps(body).encode(), CONTEXT).prompt == body["prompt"]


@pytest.mark.parametrize("ascii", [True, False])
@pytest.mark.parametrize("indent", [None, 4])
@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": f"message {n}"} for n in range(5000)],
        [{"role": "user", "content": [{"type": "text", "text": "hello\n"}]}] * 5000,
        [{"role": "user", "content": TABLE}, {"role": "user", "content": DOCUMENT}],
        [{"role": "user", "content": json.dumps(json.dumps(DOCUMENT))}],
        [{"role": "user", "content": "長い文章。" * 70_000}],
    ],
    ids=["texts", "parts", "documents", "quoted twice", "Chinese"],
)
def test_conversations_of_honest_clients_are_decoded(messages: Any, indent: Any, ascii: bool) -> None:
    body = json.dumps({"messages": messages}, ensure_ascii=ascii, indent=indent).encode()
    assert decode(CHAT, body, CONTEXT).messages == messages


@pytest.mark.parametrize(
    "where",
    [
        b'{"prompt":"","a":[%s]}',
        b'{"prompt":"","response_format":{"type":"","schema":{"a":[%s]}}}',
    ],
)
@pytest.mark.parametrize(
    "many",
    [
        b"[]" + b",{}" * 70_000,
        b'"a"' + b',"a"' * 150_000,
        b'{"a":0}' + b',{"a":0}' * 40_000,
        b"1" + b",2.5" * 300_000,
        b"0.1" + b",0.123456789012345678901" * 50_000,
        b'"' + b'","'.join([b"\\n" * 1_500_000] * 2) + b'"',
        b'"' + b'","'.join(["é".encode() * 2_000_000] * 2) + b'"',
        b"0" + b" " * 6_000_000,
        b"1" * 200 + b',"' + b"a" * (1 << 17) + b'"',
    ],
    ids=["openings", "strings", "members", "values", "long values", "escapes", "beyond ASCII", "blanks", "digits"],
)
def test_what_would_take_long_to_decode_is_refused(where: bytes, many: bytes) -> None:
    with pytest.raises(Problem) as told:
        decode(COMPLETION, where % many, CONTEXT)
    assert told.value.status == 400 and told.value.facts.code == "body_too_complex"


def test_ids_for_the_whole_of_a_long_context_are_decoded() -> None:
    body = json.dumps({"prompt": [100_000] * (1 << 20)}).encode()
    assert len(decode(COMPLETION, body, 1 << 20).prompt) == 1 << 20
    with pytest.raises(Problem, match="too much to read at once"):
        decode(COMPLETION, body, CONTEXT)


def test_a_text_that_is_beyond_any_use_is_refused_for_the_context() -> None:
    body = b'{"prompt": "%s"}' % (b"x" * 10_000_000)
    with pytest.raises(Problem, match="a text of 10000000 bytes: for a context of 8192 tokens") as told:
        decode(COMPLETION, body, CONTEXT)
    assert told.value.facts.code == "context_length_exceeded"
    assert len(decode(COMPLETION, body, 1 << 20).prompt) == 10_000_000


@pytest.mark.parametrize("before", [1, (1 << 19) - 14, (1 << 19) - 13, (1 << 19) - 12, (1 << 19) - 11, 1_000_000])
@pytest.mark.parametrize("character", ["é", "語", "😀"])
def test_half_a_character_is_found_wherever_it_is(character: str, before: int) -> None:
    start = b'{"prompt": "%s' % (b"x" * before)
    whole = start + character.encode() + b'"}'
    assert decode(COMPLETION, whole, CONTEXT).prompt == "x" * before + character
    with pytest.raises(Problem, match=f"not UTF-8 at byte {len(start)}$"):
        decode(COMPLETION, start + character.encode()[:-1] + b'"}', CONTEXT)
