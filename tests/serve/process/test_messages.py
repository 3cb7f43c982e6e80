"""Frames between the two processes: what goes in comes out, and nothing else gets through."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline.engine.types import Delta, FinishReason, Progress, Request, SamplingParams, TokenLogprob
from phaseline.errors import CapacityError, PhaselineError, RequestError
from phaseline.serve.errors import ProtocolError
from phaseline.serve.process.messages import (
    MAX_FRAME,
    Abort,
    Close,
    EngineFacts,
    Failed,
    Fatal,
    FrameReader,
    Load,
    Loading,
    Ready,
    StepReport,
    Submit,
    frame,
    read_command,
    read_report,
    request_of,
    submit,
)

ids = st.integers(0, 2**31)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
numbers = st.floats(allow_nan=False)
counts = st.integers(0, 2**40)
params = st.builds(
    SamplingParams,
    max_tokens=ids,
    temperature=numbers,
    logit_bias=st.dictionaries(ids, numbers, max_size=3),
    seed=st.none() | st.integers(0, 2**64 - 1),
    stop=st.lists(texts, max_size=3),
    stop_ids=st.lists(ids, max_size=3),
    spelt_ids=st.lists(ids, max_size=3),
    ignore_eos=st.booleans(),
    logprobs=st.none() | ids,
)
requests = st.builds(
    Request,
    id=texts,
    prompt=st.lists(ids, max_size=40),
    params=params,
    salt=st.binary(max_size=8),
    priority=st.integers(-(2**31), 2**31),
    progress=st.booleans(),
)
logprobs = st.builds(TokenLogprob, ids, numbers, st.lists(st.tuples(ids, numbers), max_size=3))
deltas = st.builds(
    Delta,
    texts,
    ids,
    st.lists(ids, max_size=3),
    texts,
    st.lists(logprobs, max_size=3),
    st.none() | st.lists(st.none() | logprobs, max_size=3),
    st.none() | st.sampled_from(FinishReason),
    ids,
)
steps = st.builds(
    StepReport,
    t_ns=counts,
    seconds=numbers,
    prefill=st.lists(st.tuples(texts, counts, counts), max_size=3),
    decode=st.lists(st.tuples(texts, counts), max_size=3),
    deltas=st.lists(deltas, max_size=3),
    progress=st.lists(st.builds(Progress, texts, counts, counts, counts, numbers), max_size=2),
    failed=st.lists(st.builds(Failed, texts, texts, texts), max_size=2),
    **dict.fromkeys(("free_pages", "pages"), st.lists(counts, max_size=3)),
    **dict.fromkeys(("running", "waiting", "queued_prefill_tokens", "cached_tokens", "preemptions"), counts),
)
facts = st.just(EngineFacts(320, 4096, 512, 16, [7, 9], 32, 2, "avx2", "bf16", "mixed", 12.5))
reports = st.one_of(
    steps, st.builds(Loading, counts, counts), st.builds(Ready, facts), st.builds(Fatal, kind=texts, message=texts)
)
commands = st.one_of(
    requests.map(submit), st.builds(Abort, texts), st.just(Close()), st.just(Load("model", {"chunk": 7, "level": None}))
)


def payload(message: Any) -> bytes:
    (found,) = FrameReader().feed(frame(message))
    return found


@given(requests)
def test_a_request_arrives_as_it_was_sent(request: Request) -> None:
    command = read_command(payload(submit(request)))
    assert isinstance(command, Submit) and command.request_id == request.id
    assert request_of(command) == request


@given(st.lists(reports, max_size=4), st.data())
def test_frames_arrive_whole_however_the_bytes_are_cut(sent: list[Any], data: st.DataObject) -> None:
    stream, reader, found = b"".join(map(frame, sent)), FrameReader(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += map(read_report, reader.feed(stream[:size]))
        stream = stream[size:]
    assert found == sent


@given(reports)
def test_a_truncated_frame_is_awaited_not_read(report: Any) -> None:
    whole = frame(report)
    reader = FrameReader()
    assert list(reader.feed(whole[:-1])) == []
    assert [read_report(p) for p in reader.feed(whole[-1:])] == [report]


@given(st.binary(max_size=200) | st.builds(lambda m, cut: payload(m)[:cut], commands | reports, st.integers(0, 60)))
def test_bytes_that_are_no_message_are_refused(junk: bytes) -> None:
    for read in (read_command, read_report):
        try:
            read(junk)
        except ProtocolError:
            continue


@given(commands | reports, st.data())
def test_a_spoilt_message_is_refused_or_is_one(message: Any, data: st.DataObject) -> None:
    raw = bytearray(payload(message))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    for read in (read_command, read_report):
        try:
            found = read(bytes(raw))
            if isinstance(found, Submit):
                request_of(found)
        except (ProtocolError, RequestError):
            continue


def test_each_end_refuses_the_other_ends_messages() -> None:
    with pytest.raises(ProtocolError):
        read_report(payload(Close()))
    with pytest.raises(ProtocolError):
        read_command(payload(Loading(1, 2)))


def test_deep_nesting_is_refused() -> None:
    deep = b"\x91" * 100_000 + b"\xc0"
    with pytest.raises(ProtocolError):
        read_command(deep)
    with pytest.raises(RequestError):
        request_of(Submit("r", msgspec.Raw(deep)))


def test_a_length_beyond_the_limit_is_refused_before_its_bytes_come() -> None:
    with pytest.raises(ProtocolError, match=f"at most {MAX_FRAME}"):
        list(FrameReader().feed((MAX_FRAME + 1).to_bytes(4, "little")))


def test_a_message_beyond_the_limit_is_not_sent() -> None:
    with pytest.raises(CapacityError, match=f"at most {MAX_FRAME}"):
        frame(Fatal("RequestError", "x" * MAX_FRAME))


@pytest.mark.parametrize(
    "spoilt",
    [
        replace(Request("r", [1]), params=SamplingParams(seed=2**70)),
        replace(Request("r", [1]), prompt=[2**70]),
        replace(Request("r", [1]), params=SamplingParams(stop=[object()])),  # type: ignore[list-item]
        Request("r", [1], SamplingParams(stop=["\ud800"])),
    ],
)
def test_what_no_message_can_hold_is_refused(spoilt: Request) -> None:
    with pytest.raises(RequestError, match="can't be sent"):
        submit(spoilt)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"id": "r", "prompt": ["a"]},
        {"id": "r", "prompt": [1.5]},
        {"id": "r", "prompt": "abc"},
        {"id": "r", "prompt": [1], "salt": "text"},
        {"id": "r", "prompt": [1], "priority": None},
        {"id": "r", "prompt": [1], "params": {"temperature": "hot"}},
        {"id": "r", "prompt": [1], "params": 3},
    ],
)
def test_a_malformed_request_is_told_from_a_malformed_frame(fields: dict[str, Any]) -> None:
    command = read_command(payload(Submit("r", msgspec.Raw(msgspec.msgpack.encode(fields)))))
    assert isinstance(command, Submit)
    with pytest.raises(RequestError, match="malformed request"):
        request_of(command)


def test_errors_keep_their_kind() -> None:
    assert isinstance(Failed("r", "CapacityError", "too long").error(), CapacityError)
    other = Failed("r", "ZeroDivisionError", "division by zero").error()
    assert type(other) is PhaselineError and str(other) == "division by zero"
