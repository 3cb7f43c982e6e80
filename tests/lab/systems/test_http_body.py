"""The frames of HTTP bodies: however the bytes are cut, the same content."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline.lab.systems.base import StreamFault
from phaseline.lab.systems.http_body import Body, ChunkedBody, body_of

_CONTENTS = st.lists(st.binary(min_size=1, max_size=40), max_size=6)


def chunked(contents: list[bytes], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    chunks = [b"%x%b\r\n%b\r\n" % (len(content), extension, content) for content in contents]
    return b"".join([*chunks, b"0\r\n", trailer, b"\r\n"])


def feed(body: Body, data: bytes, places: list[int]) -> bytes:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return b"".join(body.feed(data[a:b]) for a, b in pairwise(edges))


@given(_CONTENTS, st.sampled_from([b"", b";a=b", b" "]), st.sampled_from([b"", b"A: b\r\nC: d\r\n"]), st.data())
def test_chunks(contents: list[bytes], extension: bytes, trailer: bytes, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, 999), max_size=8))
    body = body_of(200, {"transfer-encoding": "Chunked", "content-length": "1"})
    assert feed(body, chunked(contents, extension, trailer), places) == b"".join(contents)
    assert body.done and not body.spare


def test_content_comes_out_at_once() -> None:
    body = ChunkedBody()
    parts = [b"5\r\nab", b"c", b"de\r", b"\n0\r\n", b"\r\n"]
    assert [body.feed(part) for part in parts] == [b"ab", b"c", b"de", b"", b""]
    assert body.done


def test_counted_and_open_bodies() -> None:
    counted = body_of(200, {"content-length": "5"})
    assert feed(counted, b"abcde", [2]) == b"abcde" and counted.done and not counted.spare
    assert body_of(204, {}).done and body_of(200, {"content-length": "0"}).done
    rest = body_of(200, {})
    assert rest.feed(b"abc") == b"abc" and not rest.done
    rest.finish()
    assert rest.done


@pytest.mark.parametrize("headers", [{"transfer-encoding": "chunked"}, {"content-length": "3"}])
def test_bytes_after_the_end_are_no_content(headers: dict[str, str]) -> None:
    body = body_of(200, headers)
    data = b"abc" if "content-length" in headers else chunked([b"abc"])
    assert body.feed(data + b"HTTP/1.1") == b"abc"
    assert body.done and body.spare


@pytest.mark.parametrize("headers", [{"transfer-encoding": "chunked"}, {"content-length": "3"}])
def test_a_body_cut_short_is_a_fault(headers: dict[str, str]) -> None:
    body = body_of(200, headers)
    body.feed(b"2\r"[: 2 if "content-length" in headers else 3])
    with pytest.raises(StreamFault, match="broke off"):
        body.finish()


@pytest.mark.parametrize(
    "data", [b"\r\n", b"g\r\n", b"-1\r\n", b"0x1\r\n", b"1_0\r\n", b"1\r\nab\r\n", b"f" * 16 + b"\r\n", b"1" * 5000]
)
def test_broken_chunks_are_refused(data: bytes) -> None:
    with pytest.raises(StreamFault, match="broken HTTP chunk"):
        ChunkedBody().feed(data)


@pytest.mark.parametrize("headers", [{"transfer-encoding": "gzip"}, {"content-length": "1, 2"}])
def test_unknown_framing_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(StreamFault, match="unreadable HTTP body"):
        body_of(200, headers)
