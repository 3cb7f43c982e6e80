"""The engine's process by its socket alone: whatever comes, it answers, refuses, or ends with a reason."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from phaseline.engine.types import FinishReason, Grammar, Request, SamplingParams
from phaseline.serve.process.messages import (
    MAX_FRAME,
    Abort,
    Close,
    Fatal,
    Load,
    Loading,
    Ready,
    Submit,
    frame,
    submit,
)
from support.wire import PARAMS, Wire

LONG = SamplingParams(max_tokens=30000, ignore_eos=True)
OPTIONS = {"threads": 1, "chunk": 16, "memory": 600 << 20}


class WireToProcess(Wire):
    """And the process at the other end."""

    def __init__(self, sock: socket.socket, process: "subprocess.Popen[bytes]") -> None:
        super().__init__(sock)
        self.process = process

    def exit_status(self) -> int:
        return self.process.wait(20)


@contextmanager
def wire() -> Iterator[WireToProcess]:
    """A process that waits for its first command."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "phaseline.serve.process.engine_process", str(theirs.fileno())]
    with ours, subprocess.Popen(command, pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        try:
            yield WireToProcess(ours, process)
        finally:
            process.kill()


@pytest.fixture
def loaded(tiny: Path) -> Iterator[WireToProcess]:
    with wire() as found:
        found.send(Load(str(tiny), OPTIONS))
        found.until(lambda r: isinstance(r, Ready))
        yield found


def test_loading_is_told_as_it_goes(tiny: Path) -> None:
    with wire() as found:
        found.send(Load(str(tiny), OPTIONS))
        *loading, ready = found.until(lambda r: isinstance(r, Ready))
        assert all(isinstance(r, Loading) for r in loading)
        done = [r.done for r in loading]
        assert done == sorted(done) and done[-1] > 0.9 * loading[-1].total > 0
        assert (ready.facts.vocab, ready.facts.context, ready.facts.chunk) == (320, 1 << 15, 16)
        found.send(Close())
        assert found.exit_status() == 0


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (Load("no such name", {}), "PhaselineError"),
        (Load("/nowhere/model.gguf", {}), "PhaselineError"),
        (Load("any", {"chunk": 0}), "RequestError"),
        (Load("any", {"kv_type": "f8"}), "UnsupportedError"),
        (Close(), "ProtocolError"),
    ],
)
def test_what_cannot_be_loaded_ends_it_with_the_reason(command: Any, kind: str) -> None:
    with wire() as found:
        found.send(command)
        report = found.report()
        assert isinstance(report, Fatal) and report.kind == kind and report.message
        assert found.exit_status() == 2


@pytest.mark.parametrize(
    "junk",
    [b"\x05\x00\x00\x00hello", (MAX_FRAME + 1).to_bytes(4, "little"), frame(Load("again", {}))],
    ids=["no message", "too long", "out of turn"],
)
def test_a_frame_that_makes_no_sense_ends_it_with_the_reason(loaded: WireToProcess, junk: bytes) -> None:
    loaded.sock.sendall(junk)
    report = loaded.until(lambda r: isinstance(r, Fatal))[-1]
    assert report.kind == "ProtocolError"
    assert loaded.exit_status() == 2


def test_malformed_requests_are_refused_and_others_served(loaded: WireToProcess) -> None:
    expected = loaded.generate("first")
    draw = random.Random(0)
    junk = [None, True, -1, 2**63, 1.5, float("nan"), "text", b"bytes", [], [[]], ["a"], {}, {"a": 1}, {1: 2}]
    good = msgspec.to_builtins(Request("r", [50], SamplingParams()))
    for number in range(200):
        fields = {**good, "params": dict(good["params"]), "id": str(number)}
        part = draw.choice([fields, fields["params"]])
        name = draw.choice([*part])
        part[name] = draw.choice(junk)
        loaded.send(Submit(str(number), msgspec.Raw(msgspec.msgpack.encode(fields))))
        loaded.send(Abort(str(number)))  # those that happen to make sense
    loaded.send(Submit("last", msgspec.Raw(b"\xc0")))
    reports = loaded.until(lambda r: any(f.request_id == "last" for f in r.failed))
    failed = {f.request_id: f for r in reports for f in r.failed}
    assert len(failed) > 100
    assert {f.kind for f in failed.values()} <= {"RequestError", "CapacityError"}
    assert loaded.generate("again") == expected


def test_a_prompt_beyond_the_context_is_refused(loaded: WireToProcess) -> None:
    loaded.send(submit(Request("r", [50] * 100_000, PARAMS)))
    failed = loaded.failure()
    assert (failed.request_id, failed.kind) == ("r", "CapacityError") and "100000 tokens" in failed.message


def test_a_grammar_that_takes_long_to_compile_holds_up_nobody(loaded: WireToProcess) -> None:
    slow = Grammar("json_schema", '{"type": "integer", "multipleOf": 29989}')  # hundreds of steps' time
    quick = Grammar("choice", '["he", "she"]')
    expected = loaded.generate("alone")
    loaded.send(submit(Request("stream", [50], LONG)))
    loaded.until(lambda r: bool(r.deltas))
    for name, grammar in (("slow", slow), ("unwanted", quick), ("quick", quick), ("bad", Grammar("regex", "("))):
        loaded.send(submit(Request(name, [50], SamplingParams(max_tokens=50, grammar=grammar))))
    loaded.send(Abort("unwanted"))
    loaded.send(submit(Request("free", [50, 60, 70], PARAMS)))
    reports = loaded.until(lambda r: any(d.request_id == "quick" and d.finish_reason for d in r.deltas))
    deltas = [d for r in reports for d in r.deltas]
    assert [t for d in deltas if d.request_id == "free" for t in d.token_ids] == expected
    begun = [next(n for n, d in enumerate(deltas) if d.request_id == name) for name in ("free", "slow", "quick")]
    assert begun == sorted(begun)
    assert sum(d.request_id == "stream" for d in deltas[begun[0] : begun[1]]) > 20
    assert "".join(d.text for d in deltas if d.request_id == "quick") in ("he", "she")
    ended = [d.finish_reason for d in deltas if d.request_id == "unwanted"]
    assert ended == [FinishReason.ABORT]
    failed = [f for r in reports for f in r.failed] or [loaded.failure()]
    assert [(f.request_id, f.kind) for f in failed] == [("bad", "RequestError")] and "regex" in failed[0].message


def test_it_ends_while_a_grammar_is_compiled(loaded: WireToProcess) -> None:
    slow = Grammar("json_schema", '{"type": "integer", "multipleOf": 99991}')
    for name in "abc":
        loaded.send(submit(Request(name, [50], SamplingParams(grammar=slow))))
    loaded.send(Close())
    assert loaded.exit_status() == 0


def test_an_id_in_use_is_refused_and_its_owner_goes_on(loaded: WireToProcess) -> None:
    loaded.send(submit(Request("r", [50], LONG)))
    loaded.until(lambda r: bool(r.deltas))
    loaded.send(submit(Request("r", [50], PARAMS)))
    assert loaded.failure().kind == "RequestError"
    assert loaded.until(lambda r: bool(r.deltas))[-1].deltas[0].request_id == "r"


def test_what_is_cancelled_is_not_compiled(loaded: WireToProcess) -> None:
    slow = Grammar("json_schema", '{"type": "integer", "multipleOf": 99991}')
    for name in "abcdef":
        loaded.send(submit(Request(name, [50], SamplingParams(grammar=slow, n=2))))
    for name in "fedcb":
        loaded.send(Abort(name))
    ended: list[tuple[str, int, FinishReason | None]] = []
    while len(ended) < 10:
        report = loaded.report()
        ended += ((d.request_id, d.index, d.finish_reason) for d in report.deltas)
    assert sorted(ended) == [(name, index, FinishReason.ABORT) for name in "bcdef" for index in (0, 1)]
    assert report.waiting == 1  # the first, which takes more than a second
    loaded.send(Abort("a"))
    loaded.until(lambda r: r.waiting == 0)
    assert len(loaded.generate("again")) == 4


def test_an_abort_gives_pages_back_by_the_next_step(loaded: WireToProcess) -> None:
    loaded.send(submit(Request("r", [50] * 20_000, PARAMS)))
    before = loaded.until(lambda r: bool(r.prefill))[-1]
    assert before.free_pages < before.pages
    loaded.send(Abort("r"))
    after = loaded.until(lambda r: bool(r.deltas))[-1]
    assert after.deltas[0].finish_reason and not after.prefill
    assert after.free_pages == after.pages and after.queued_prefill_tokens == 0


def test_a_server_that_stands_still_loses_nothing(loaded: WireToProcess) -> None:
    loaded.send(submit(Request("r", [50], SamplingParams(max_tokens=5000, ignore_eos=True))))
    time.sleep(1.0)  # far more reports than the socket holds
    reports = loaded.until(lambda r: any(d.finish_reason for d in r.deltas))
    assert sum(len(d.token_ids) for r in reports for d in r.deltas) == 5000
    assert all(len(r.deltas) == 1 for r in reports if r.decode)  # a report of each step


def test_an_idle_engine_reports_once_in_a_while(loaded: WireToProcess) -> None:
    first, second = loaded.report(), loaded.report()
    assert (first.prefill, first.decode, first.running, first.waiting) == ([], [], 0, 0)
    assert 0.9 < (second.t_ns - first.t_ns) / 1e9 < 5


@pytest.mark.parametrize("busy", [False, True])
def test_it_ends_when_the_server_is_gone(loaded: WireToProcess, busy: bool) -> None:
    if busy:
        loaded.send(submit(Request("r", [50], LONG)))
        loaded.until(lambda r: bool(r.deltas))
    loaded.sock.close()
    assert loaded.exit_status() == 1


def test_it_does_not_go_on_loading_for_nobody(tiny: Path) -> None:
    with wire() as found:
        found.send(Load(str(tiny), OPTIONS))
        found.sock.close()
        assert found.exit_status() == 1


def test_signals_for_the_whole_group_do_not_end_it(loaded: WireToProcess) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(loaded.process.pid, number)
    assert len(loaded.generate("r")) == 4
