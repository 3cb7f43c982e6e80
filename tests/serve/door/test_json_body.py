"""What is decoded and what is not, by how much is in it; and that counting it counts right."""

import json
import re
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaseline._native import long_json_members, measure_json
from phaseline.serve.door.json_body import SMALL, decode
from phaseline.serve.door.problems import Problem
from phaseline.serve.door.protocol import ChatBody, CompletionBody, DetokenizeBody
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


@given(st.dictionaries(st.text(max_size=5), JSON), st.sampled_from([None, 2]), st.integers(0, 40))
def test_long_members_are_found_and_cut_between_elements(value: dict[str, Any], indent: Any, least: int) -> None:
    text = json.dumps(value, indent=indent).encode()
    found = {name: (cuts, elements) for name, cuts, elements in long_json_members(text, least)}
    if indent is None:
        spelt = {json.dumps(key)[1:-1].encode(): json.dumps(inner) for key, inner in value.items()}
        assert list(found) == [name for name, it in spelt.items() if it[0] in "[{" and len(it) >= least]
    for key, inner in value.items():
        if name := found.get(json.dumps(key)[1:-1].encode()):
            cuts, elements = name
            assert elements == max(1, len(inner))
            opening, closing = text[cuts[0] : cuts[0] + 1], text[cuts[-1] : cuts[-1] + 1]
            parts = [json.loads(opening + text[a + 1 : b] + closing) for a, b in pairwise(cuts)]
            joined = {k: v for p in parts for k, v in p.items()} if opening == b"{" else [v for p in parts for v in p]
            assert joined == inner
            assert all(b - a >= least for a, b in pairwise(cuts[:-1]))


@settings(max_examples=300)
@given(st.lists(st.sampled_from([b'"', b"\\", b"[", b"}", b"{", b":", b",", b"]", b'"a":[', b"\xff"])).map(b"".join))
def test_any_bytes_are_cut(text: bytes) -> None:
    for name, cuts, elements in long_json_members(b'{"a":[' + text, 1):
        assert len(name) <= len(text) and cuts == sorted(set(cuts)) and 1 <= elements <= len(text) + 1
        assert cuts[-1] < len(text) + 6
    assert long_json_members(b'{"%b":[1]}' % (b"k" * 65), 1) == []


def test_other_threads_run_while_it_is_counted_and_cut() -> None:
    text = bytearray(b"{" + b" " * 20_000_000)
    assert others_run_during(lambda: measure_json(text))
    assert others_run_during(lambda: long_json_members(text, 1))


def test_other_threads_run_while_much_is_decoded() -> None:
    body = b'{"prompt":[' + b",".join([b"[" + b"1000," * 8000 + b"1000]"] * 250) + b"]}"
    _, cuts, _ = long_json_members(body, SMALL)[0]
    assert len(cuts) > 60 and all(end - start < SMALL + 50_000 for start, end in pairwise(cuts))
    assert others_run_during(lambda: decode(COMPLETION, body, CONTEXT))


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "word " * 800_000},
        {"prompt": DOCUMENT},
        {"prompt": [49_000] * CONTEXT},
        {"prompt": [[49_000] * 1024] * 200},
        {"prompt": ["a prompt of some words"] * 20_000},
        {"prompt": [[49_000 + n % 1000 for n in range(8000)] for _ in range(31)]},
        {"prompt": [[*range(8191)]] * 60},
        {"prompt": ["a prompt", "another " * 40_000] * 20},
        {"prompt": "x", "logit_bias": {str(id): -100 + id % 200 for id in range(131_072)}},
        {"prompt": [7] * CONTEXT, "stop_token_ids": [*range(131_072)], "logit_bias": {"5": 1.5}},
        {"prompt": "x", "tokens": [5] * 100_000},
        {"prompt": [[1] * 8000] * 50, "logit_bias": {str(id): -100 for id in range(50_000)}, "x": DOCUMENT},
    ],
)
@pytest.mark.parametrize("indent", [None, 8])
def test_what_honest_clients_send_is_decoded(body: Any, indent: Any) -> None:
    text = json.dumps(body, indent=indent).encode()
    assert len(text) < 16 << 20 or indent
    found = decode(COMPLETION, bytearray(text), CONTEXT)
    biases = {str(id): bias for id, bias in (found.logit_bias or {}).items()}
    given = (found.prompt, biases, found.stop_token_ids or [])
    assert given == (body["prompt"], body.get("logit_bias", {}), body.get("stop_token_ids", []))


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
    several = json.dumps({"prompt": [[1000] * 500_000]}, indent=8).encode()
    assert decode(COMPLETION, several, 1 << 19).prompt == [[1000] * 500_000]
    with pytest.raises(Problem, match="prompt: too much to read: 1048576 elements, where 131072 are read"):
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


IDS = b"1000," * 60_000


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"prompt":[%b1.5,%b1]}' % (IDS, IDS), r"^prompt\[60000\]: Expected"),
        (b'{"prompt":[%b[1,"x"],%b1]}' % (IDS, IDS), r"^prompt\[60000\]\[1\]: Expected `int`"),
        (b'{"prompt":"x","stop_token_ids":[%bnull]}' % IDS, r"^stop_token_ids\[60000\]: Expected `int`"),
        (b'{"prompt":"x","logit_bias":{%b"5":[]}}' % (b'"7":1,' * 40_000), r"^logit_bias\[...\]: Expected `float`"),
        (b'{"prompt":"x","logit_bias":[%b1]}' % IDS, "^logit_bias: Expected `object"),
        (b'{"prompt":{%b"7":1}}' % (b'"7":1,' * 40_000), "^prompt: Expected `str"),
        (b'{"prompt":[%b1x,1]}' % IDS, r"not JSON: JSON is malformed: [^(]+$"),
        (b'{"prompt":[%b1}}' % IDS, "not JSON"),
        (b'{"prompt":[%b1]' % IDS, "not JSON"),
        (b'{"prompt":[%b]}' % IDS, "not JSON"),
        (b'{"prompt":[%b,1]}' % IDS, "not JSON"),
        (b'{"prompt":["%b",%b,1]}' % (b"x" * SMALL, b" " * SMALL), "not JSON: prompt has an element that is nothing"),
        (b'{"prompt":[%b1],"x":NaN}' % IDS, "not JSON"),
        (b'{"prompt":[%bNaN]}' % IDS, "not JSON"),
        (b'{"prompt":[%b"\xff"]}' % IDS, "not UTF-8 at byte 300012"),
        (b'{"prompt":[%b%b]}' % (b"[" * SMALL, b"]" * SMALL), "too much to read at once"),
        (b'{"prompt":[[%b[]]]}' % (b"[]," * 70_000), "too much to read at once: 70003 lists"),
        (b'{"prompt":[%b[]]}' % (b"[]," * 140_000), "^prompt: too much to read: 140001 elements"),
        (b'{"prompt":[1],"a":[%b1]}' % (b"[]," * 70_000), "too much to read at once: 70003 lists"),
    ],
)
def test_what_is_wrong_within_much_is_told(body: bytes, message: str) -> None:
    with pytest.raises(Problem, match=message) as told:
        decode(COMPLETION, body, CONTEXT)
    assert told.value.status == 400


def test_of_what_stands_twice_the_last_counts() -> None:
    long = b'"prompt":[%b1]' % IDS
    assert decode(COMPLETION, b'{%b,"prompt":"x"}' % long, CONTEXT).prompt == "x"
    assert decode(COMPLETION, b'{%b,"prompt":[%b2]}' % (long, IDS), CONTEXT).prompt[-1] == 2
    assert len(decode(COMPLETION, b'{"prompt":"x",%b}' % long, CONTEXT).prompt) == 60_001
    assert (
        len(decode(COMPLETION, b'{"prompt":"x","logit_bias":{%b"5":1}}' % (b'"7":1,' * 40_000), 9).logit_bias or ())
        == 2
    )


def test_tokens_to_spell_are_decoded_by_parts_too() -> None:
    body = json.dumps({"tokens": [*range(131_072)], "prompt": [[]] * 1000}, indent=40).encode()
    assert decode(msgspec.json.Decoder(DetokenizeBody), body, CONTEXT).tokens == [*range(131_072)]
