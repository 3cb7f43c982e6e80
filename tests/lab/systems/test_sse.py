"""The parser of server-sent events: however the bytes are cut, the same events."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phaseline.lab.systems.base import StreamFault
from phaseline.lab.systems.sse import EventParser, ServerEvent

LIMIT = 60


def parse(*packets: bytes, limit: int = LIMIT) -> tuple[list[ServerEvent], bool]:
    """All events, and whether the parser refused the rest."""
    parser, events = EventParser(limit), list[ServerEvent]()
    try:
        for packet in packets:
            for event in parser.feed(packet):
                events.append(event)
        for event in parser.finish():
            events.append(event)
    except StreamFault:
        return events, True
    return events, False


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(p % (len(data) + 1) for p in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"data: a\n\n", [ServerEvent("a")]),
        (b"data:a\n\n", [ServerEvent("a")]),
        (b"data:  a\n\n", [ServerEvent(" a")]),  # one space belongs to the format, the next to the data
        (b"data\n\n", [ServerEvent("")]),
        (b"data: a\r\n\r\n", [ServerEvent("a")]),
        (b"data: a\r\r", [ServerEvent("a")]),
        (b"data: a\r\ndata: b\r\n\r\n", [ServerEvent("a\nb")]),
        (b"data: a\r\n\ndata: b\n\r\n", [ServerEvent("a"), ServerEvent("b")]),
        (b"data: a\ndata: b\n\n", [ServerEvent("a\nb")]),
        (b": hello\n\n:\ndata: a\n: more\n\n", [ServerEvent("a")]),
        (b"event: error\nid: 7\nretry: 9\ndata: a\n\ndata: b\n\n", [ServerEvent("a", "error"), ServerEvent("b")]),
        (b"event: alone\n\ndata: a\n\n", [ServerEvent("a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [ServerEvent("a")]),
        ("data: né😀\n\n".encode(), [ServerEvent("né😀")]),
        (b"data: \xff\n\n", [ServerEvent("�")]),
        (b"data: a\n\ndata: b", [ServerEvent("a"), ServerEvent("b")]),  # no blank line at the end
        (b"data: a\n\ndata: b\n", [ServerEvent("a"), ServerEvent("b")]),
        (b"data: a: b\n\n", [ServerEvent("a: b")]),
        (b"", []),
    ],
)
def test_events(data: bytes, events: list[ServerEvent]) -> None:
    assert parse(data) == (events, False)
    assert parse(*(data[i : i + 1] for i in range(len(data)))) == (events, False)


def test_an_event_comes_out_with_its_last_byte() -> None:
    parser = EventParser()
    assert [list(parser.feed(packet)) for packet in (b"data: a\r", b"\r", b"\ndata: b\r\n\r", b"\n")] == [
        [],
        [ServerEvent("a")],
        [ServerEvent("b")],
        [],
    ]


_LINE_PARTS = [b"data:", b"data: ", b"event: x", b": c", b"id", b"retry: 1", b"wrong: ", b" ", b"x" * 25]
_CHARACTERS = ["né😀".encode(), b"\xf0\x9f", b"\xef\xbb\xbf"]
_LINE_ENDS = [b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n"]
_STREAMS = st.lists(st.sampled_from(_LINE_PARTS + _CHARACTERS + _LINE_ENDS), max_size=24).map(b"".join)


@given(_STREAMS, st.lists(st.integers(0, 999), max_size=12))
@example(b"data: a\r\n\r\n", [8])
@example(b"\xef\xbb\xbfdata: a\n\n", [1, 2])
@example(b"data: " + b"x" * LIMIT, [30])
def test_any_cut_gives_the_same_events(data: bytes, places: list[int]) -> None:
    assert parse(*cut(data, places)) == parse(data)


@given(st.binary(max_size=80), st.lists(st.integers(0, 999), max_size=6))
def test_any_bytes_give_events_or_a_fault(data: bytes, places: list[int]) -> None:
    assert parse(*cut(data, places)) == parse(data)


@given(st.lists(st.tuples(st.text(max_size=8), st.sampled_from(["message", "error"])), max_size=5))
def test_what_was_written_is_read(written: list[tuple[str, str]]) -> None:
    events = [ServerEvent(text.replace("\r", ""), name) for text, name in written]
    lines = [[f"event: {e.name}", *(f"data: {line}" for line in e.data.split("\n"))] for e in events]
    data = "".join("\r\n".join([*each, "", ""]) for each in lines).encode()
    assert parse(data, limit=500) == (events, False)


def test_memory_is_bounded() -> None:
    fits = b"data: " + b"x" * (LIMIT - 6)
    assert parse(fits + b"\n\n") == ([ServerEvent("x" * (LIMIT - 6))], False)
    assert parse(b"data: a\n\n" + fits + b"x") == ([ServerEvent("a")], True)
    assert parse(b"data: x\n" * LIMIT) == ([], True)  # many lines of one event
    assert parse(b"id: x\n" * LIMIT) == ([], True)
    assert parse(b": keep-alive\n" * LIMIT + b"data: a\n\n") == ([ServerEvent("a")], False)


@pytest.mark.parametrize("line", [b"<html>", b'{"choices": []}', b"error: out of memory", b"Data: a"])
def test_a_line_that_is_no_field_is_refused(line: bytes) -> None:
    parser = EventParser()
    with pytest.raises(StreamFault, match=line.decode()[:4]):
        list(parser.feed(line + b"\n\n"))
