"""Plain events: they are what msgspec would spell, and whatever brings more than text is left alone."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline._native import PlainEvents
from phaseline.engine.types import Delta, FinishReason, Progress, TokenLogprob
from phaseline.serve.process.messages import Close, Failed, Fatal, Loading, StepReport, frame, plain_events
from phaseline.serve.process.stream import Way

texts = st.text(st.characters(codec="utf-8"), max_size=300)
names = st.text(st.characters(codec="utf-8"), max_size=40)
counts = st.integers(0, 2**63)
deltas = st.builds(
    Delta,
    request_id=names,
    index=st.integers(0, 127),
    token_ids=st.lists(st.integers(0, 2**31), max_size=40),
    text=texts,
    cached_tokens=counts,
)


@dataclass
class Taker:
    open: bool = True

    def failed(self, error: Exception) -> None: ...


def write(event: bytes) -> bool:
    raise AssertionError("it is only spelt here")


@dataclass
class Streamed:
    """As much of a stream as is looked at."""

    ways: dict[int, Way] = field(default_factory=dict)


def report(*deltas: Delta, **others: Any) -> StepReport:
    known: dict[str, Any] = {
        **{name: [] for name in ("prefill", "decode", "progress", "failed", "free_pages", "pages")},
        **dict.fromkeys(("running", "waiting", "queued_prefill_tokens", "cached_tokens", "preemptions"), 0),
    }
    return StepReport(**{"t_ns": 5, "seconds": 0.5, "deltas": list(deltas), **known, **others})


def streams_of(*deltas: Delta, taker: Taker) -> dict[str, Streamed]:
    """With a way for each."""
    streams: dict[str, Streamed] = {}
    for delta in deltas:
        ways = streams.setdefault(delta.request_id, Streamed()).ways
        ways[delta.index] = Way(taker, write, b"%d<" % delta.index, b">")
    return streams


DELTA = Delta("r", 1, [7], "text")
TAKER = Taker()
KNOWN = streams_of(DELTA, taker=TAKER)


@given(
    st.lists(deltas, min_size=1, max_size=20),
    st.fixed_dictionaries(
        {"t_ns": counts, "seconds": st.floats(), "running": counts, "decode": st.lists(st.tuples(names, counts))}
    ),
)
def test_every_text_comes_between_the_pieces_of_its_own_way(told: list[Delta], others: dict[str, Any]) -> None:
    taker = Taker()
    events = plain_events(frame(report(*told, **others)), streams_of(*told, taker=taker))
    assert events is not None and [event for _, _, event in events] == [
        b"%d<%b>" % (d.index, msgspec.json.encode(d.text)) for d in told if d.text
    ]
    assert all(found is taker and how is write for found, how, _ in events)


def test_every_character_is_spelt_as_json() -> None:
    text = "".join(map(chr, range(0x180))) + "\u2028\uffff\U0001f600"
    assert plain_events(frame(report(Delta("r", 1, [7], text))), KNOWN) == [
        (TAKER, write, b"1<%b>" % msgspec.json.encode(text))
    ]


@pytest.mark.parametrize(
    "left",
    [
        report(),
        report(Delta("r", 1, [7], "a", finish_reason=FinishReason.STOP)),
        report(Delta("r", 1, [7], "a", logprobs=[TokenLogprob(7, -0.5)])),
        report(Delta("r", 1, [7], "a", prompt_logprobs=[])),
        report(DELTA, Delta("other", 1, [7], "a")),
        report(DELTA, Delta("r", 0, [7], "a")),
        report(DELTA, prefill=[("s", 0, 5)]),
        report(DELTA, progress=[Progress("s", 1, 2, 0, 0.5)]),
        report(DELTA, failed=[Failed("s", "RequestError", "why")]),
        Loading(1, 2),
        Fatal("kind", "why"),
        Close(),
    ],
)
def test_what_brings_more_than_text_or_has_no_way_is_left_alone(left: Any) -> None:
    assert plain_events(frame(report(DELTA)), KNOWN) == [(TAKER, write, b'1<"text">')]
    assert plain_events(frame(left), KNOWN) is None


def test_nothing_goes_to_a_taker_who_is_not_open() -> None:
    taker = Taker(open=False)
    assert plain_events(frame(report(DELTA)), streams_of(DELTA, taker=taker)) is None
    taker.open = True
    assert plain_events(frame(report(DELTA)), streams_of(DELTA, taker=taker))


@given(st.integers(0, 200))
def test_a_frame_that_has_not_wholly_come_is_left_alone(cut: int) -> None:
    whole = frame(report(DELTA))
    assert plain_events(whole[:cut] if cut < len(whole) else whole + b"x", KNOWN) is None


@given(st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=4), st.binary(max_size=60))
def test_any_bytes_will_do(changed: list[tuple[int, int]], junk: bytes) -> None:
    raw = bytearray(frame(report(DELTA, Delta("r", 1, [1000, 70_000], "a" * 300))))
    for at, value in changed:
        raw[4 + at % (len(raw) - 4)] = value
    for payload in (bytes(raw), len(junk).to_bytes(4, "little") + junk):
        events = plain_events(payload, KNOWN)
        assert events is None or all(taker is TAKER and event.startswith(b'1<"') for taker, _, event in events)


def test_fields_it_does_not_find_are_refused() -> None:
    with pytest.raises(ValueError, match="no field is called failed"):
        PlainEvents("StepReport", ["prefill", "deltas", "progress"], Delta.__struct_fields__)
