"""Streams of text: never half a character, stop strings held back exactly as long as they could still match."""

import codecs
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phaseline.errors import RequestError
from phaseline.files.text_stream import TextStream
from phaseline.files.tokenizer import Tokenizer
from support.vocab_cases import tiny_metadata

TOKENIZER = Tokenizer.from_metadata(tiny_metadata("ab", "abc", "ba", "Ã©a", "cĠ", "ðŁ", "Ļab"))
ENCODED = st.text("abé🦙\ufffd ").map(str.encode)
IDS = st.one_of(
    st.lists(st.integers(0, TOKENIZER.vocab_size - 1)),
    st.binary().map(lambda raw: byte_ids(raw)),
    st.lists(ENCODED | st.binary(max_size=3)).map(lambda parts: byte_ids(b"".join(parts))),
    st.lists(st.sampled_from(["a", "b", "c", "ab", "abc", "ba", "Ã©a", "cĠ", "ðŁ", "Ļab", "¦", "</s>"])).map(
        lambda texts: [id_of(text) for text in texts]
    ),
)
STOPS = st.lists(st.text("abcé🦙\ufffd ", min_size=1, max_size=5), max_size=4)


def id_of(text: str) -> int:
    return next(id for id in range(TOKENIZER.vocab_size) if TOKENIZER.token_text(id) == text)


def byte_ids(raw: bytes) -> list[int]:
    """One token for each byte."""
    by_byte = {TOKENIZER.token_bytes(id): id for id in range(256)}
    return [by_byte[bytes([byte])] for byte in raw]


def cut(text: str, stops: Sequence[str]) -> str:
    """`text` up to where the first stop string begins."""
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


def common_prefix(texts: Sequence[str]) -> str:
    agreed = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False))
    return "".join(letters[0] for letters in agreed)


@given(IDS)
@example(byte_ids(b"\xf0\x9f\xa6"))
@example(byte_ids(b"\xe2\x82\xed\xa0\x80\xff\xc3"))
def test_never_half_a_character_and_nothing_else_held_back(ids: list[int]) -> None:
    stream, given_out = TextStream(TOKENIZER), ""
    for count, id in enumerate(ids, 1):
        given_out += stream.push(id)
        raw = b"".join(map(TOKENIZER.token_bytes, ids[:count]))
        assert given_out == codecs.utf_8_decode(raw, "replace", False)[0]
    assert given_out + stream.finish() == TOKENIZER.decode(ids)
    assert not stream.stopped


@given(IDS, STOPS)
@example(byte_ids(b"xabcd"), ["bc", "abcd"])
@example(byte_ids(b"xabce"), ["bc", "abcd"])
@example(byte_ids("é🦙".encode()), ["🦙"])
@example(byte_ids(b"a\xf0\x9f"), ["\ufffd"])
def test_the_whole_is_the_text_cut_at_the_first_stop(ids: list[int], stops: list[str]) -> None:
    stream, given_out = TextStream(TOKENIZER, stops), ""
    for id in ids:
        given_out += stream.push(id)
        if stream.stopped:
            break
    given_out += stream.finish()
    text = TOKENIZER.decode(ids)
    assert given_out == cut(text, stops)
    assert stream.stopped == any(stop in text for stop in stops)
    assert stream.push(id_of("a")) == stream.finish() == "" or not stream.stopped


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
@example("aabaab", ["aabb", "ba"])
def test_held_back_exactly_as_long_as_a_stop_could_still_match(text: str, stops: list[str]) -> None:
    """What is certain is what all continuations agree on: c is in no stop string, and four more letters settle all."""
    continuations = [*map("".join, itertools.product("ab", repeat=3)), "c", ""]
    stream, given_out = TextStream(TOKENIZER, stops), ""
    for count, id in enumerate(byte_ids(text.encode()), 1):
        given_out += stream.push(id)
        outcomes = [cut(text[:count] + more, stops) for more in continuations]
        assert given_out == common_prefix(outcomes)
        if stream.stopped:
            assert set(outcomes) == {given_out}
            break
        assert len(set(outcomes)) > 1


def test_nothing_comes_after_a_stop() -> None:
    stream = TextStream(TOKENIZER, ["b"])
    assert [stream.push(id) for id in byte_ids(b"abca")] == ["a", "", "", ""]
    assert stream.finish() == ""
    assert stream.stopped


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="stop string"):
        TextStream(TOKENIZER, ["a", ""])
