"""The OpenAI client against a truth server: every manner of speaking is understood, every fault is named."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from phaseline.errors import RequestError
from phaseline.lab.systems.base import Ask, Piece
from phaseline.lab.systems.openai_http import OpenAISystem
from phaseline.lab.systems.timeouts import Timeouts
from phaseline.lab.systems.truth import TruthSystem
from phaseline.lab.systems.truth_script import Burst, Fault, Script, Wire, steady
from phaseline.lab.trace import META
from support.speakers import Answering, counted, listening
from support.streams import Stream, asking, follow, follow_and_close, over_http

BURSTS = (
    Burst(0.01, 2, "reasoning"),
    Burst(0.02, 1, "reasoning"),
    Burst(0.02, 3, "text"),  # two events in one packet
    Burst(0.03, 1, "text"),
    Burst(0.04, 2, "tool"),
)
TEXTS = steady(0.01, 0.01, 4, tokens=2)
TEXT = "né😀 "

MANNERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no role": {"role": False},
    "no space after data:": {"space": False},
    "CRLF": {"newline": "\r\n"},
    "CR": {"newline": "\r"},
    "comments": {"comments": True},
    "event names": {"names": True},
    "data of several lines": {"pretty": True},
    "no blank line at the end": {"final_blank": False},
    "no blank line at the end, CRLF, cut": {"final_blank": False, "newline": "\r\n", "cut": 50, "done": False},
    "packets that cut characters": {"cut": 7, "pause": 0, "newline": "\r\n"},
    "packets of one byte": {"cut": 1, "pause": 0, "comments": True, "pretty": True},
    "no [DONE]": {"done": False},
    "no finish reason": {"finish_reason": None},
    "stop": {"finish_reason": "stop"},
    "usage with null choices": {"usage": "null"},
    "usage without choices": {"usage": "missing"},
    "usage in the last chunk": {"usage": "last"},
    "no usage": {"usage": "none"},
    "usage is refused": {"usage": "refused"},
    "cached tokens": {"cached_tokens": 2},
    "timings": {"timings": True},
    "slow headers": {"headers_at": 0.05},
    "counts by ids": {"counts": "token_ids"},
    "counts by log-probabilities": {"counts": "logprobs"},
    "counts by usage": {"counts": "usage"},
}


@pytest.mark.parametrize("manner", MANNERS.values(), ids=MANNERS)
@pytest.mark.parametrize(("api", "bursts"), [("chat", BURSTS), ("completions", TEXTS)])
def test_the_script_is_recovered(manner: dict[str, Any], api: str, bursts: tuple[Burst, ...]) -> None:
    script = Script(bursts, wire=Wire(token_text=TEXT, **manner))
    seen, true = over_http(script, api=api), asyncio.run(follow(TruthSystem(script)))
    assert (seen.fault, true.fault) == (None, None)
    assert seen.content == true.content
    assert [(p.channel, p.tokens, p.text) for p in seen.content] == [
        (b.channel, b.tokens if "counts" in manner else None, TEXT * b.tokens) for b in bursts
    ]
    assert seen.facts == true.facts
    if manner.get("usage") not in ("none", "refused"):
        assert seen.facts["output_tokens"] == sum(b.tokens for b in bursts) and seen.facts["prompt_tokens"] == 3


def test_what_arrives_together_is_yielded_together_and_in_time() -> None:
    seen = over_http(Script(tuple(replace(burst, at=burst.at * 10) for burst in BURSTS)))
    sizes = [sum(piece.channel != META for piece in batch) for batch in seen.batches]
    assert [size for size in sizes if size] == [1, 2, 1, 1]
    at = [0.1, 0.2, 0.3, 0.4]
    assert all(t >= due for t, due in zip(seen.content_times, at, strict=True))
    assert all(t - due < 0.5 for t, due in zip(seen.content_times, at, strict=True))
    assert seen.batches[0] == [Piece(META)], "the headers come first, in a batch of their own"


@pytest.mark.parametrize("counts", ["none", "token_ids", "logprobs"])
def test_an_answer_that_does_not_stream(counts: str) -> None:
    seen = over_http(Script(TEXTS, wire=Wire(counts=counts, role=False)), stream=False)
    assert seen.content == [Piece("text", 8, "tok " * 8)]  # one chunk: its usage tells its count
    assert seen.facts == {"finish_reason": "length", "prompt_tokens": 3, "output_tokens": 8}
    both = over_http(Script((Burst(0, 1, "reasoning"), Burst(0, 2))), stream=False)
    assert both.content == [Piece("reasoning", None, "tok "), Piece("text", None, "tok tok ")]


@pytest.mark.parametrize("whole", [b"{}", b"[]", b"hi", b'{"choices": []}', b'{"error": {"message": "full"}}'])
def test_an_answer_without_choices_is_a_fault(whole: bytes) -> None:
    async def ask() -> Stream:
        async with listening(Answering([counted(whole, b"")])) as url:
            return await follow_and_close(OpenAISystem(url, "truth", stream=False))

    stream = asyncio.run(ask())
    assert stream.fault and ("full" in stream.fault if b"full" in whole else "no sense" in stream.fault)


def test_an_answer_that_does_not_stream_may_take_its_time() -> None:
    slow, timeouts = Script(steady(0.5, 0, 1)), Timeouts(first=0.2, between=0.2)
    assert over_http(slow, stream=False, timeouts=timeouts).fault is None
    assert "in all" in str(over_http(slow, stream=False, timeouts=replace(timeouts, total=0.3)).fault)


def test_token_ids_are_for_the_completions_api() -> None:
    ids = Ask([5, 6, 7, 8], max_tokens=2)
    assert over_http(Script(TEXTS), ids, api="completions").facts["prompt_tokens"] == 4
    with pytest.raises(RequestError, match="completions"):
        over_http(Script(TEXTS), ids)


def test_a_refused_usage_is_remembered() -> None:
    async def twice(system: OpenAISystem) -> list[Any]:
        told = [(await system.describe())["usage_in_stream"]]
        for _ in range(2):
            stream = await follow(system)
            told += [stream.fault, (await system.describe())["usage_in_stream"]]
        return told

    assert asking(Script(TEXTS), twice) == [None, None, True, None, True]
    assert asking(Script(TEXTS, wire=Wire(usage="refused")), twice) == [None, None, False, None, False]


def test_options_are_passed_on_and_none_takes_a_field_away() -> None:
    silent = Ask("a", 1, options={"stream_options": {"include_usage": False}})
    assert over_http(Script(TEXTS), silent).facts == {"finish_reason": "length"}
    assert over_http(Script(TEXTS), Ask("a", 1, options={"stream": None})).fault is not None


def test_the_only_model_is_found() -> None:
    async def described(system: OpenAISystem) -> Any:
        return (await system.describe())["model"]

    assert asking(Script(TEXTS), described, model=None) == "truth"
    assert "choose one of them: one, other" in str(over_http(Script(TEXTS, model=None), model=None).fault)
    assert over_http(Script(TEXTS, model=None), model="one").fault is None


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "refused": ({"fault": Fault("refuse", status=503)}, "503 Scripted: scripted refusal"),
    "refused with 400": ({"fault": Fault("refuse", status=400)}, "400 Scripted: scripted refusal"),
    "an error in the stream": ({"fault": Fault("error", after=2)}, "error in the stream: scripted error"),
    "dies before a token": ({"fault": Fault("die")}, "broke off"),
    "dies midway": ({"fault": Fault("die", after=2)}, "broke off"),
    "garbage": ({"fault": Fault("garbage", after=2)}, "oops"),
    "a huge line": ({"fault": Fault("huge", after=2)}, "more than 1048576 bytes"),
    "ends without finish": ({"wire": Wire(finish_reason=None, done=False)}, "ended without finish"),
    "wrong content type": ({"wire": Wire(content_type="text/html")}, "text/html, not text/event-stream"),
}


@pytest.mark.parametrize(("spoilt", "said"), FAULTS.values(), ids=FAULTS)
def test_faults_are_named(spoilt: dict[str, Any], said: str) -> None:
    script = Script(BURSTS, **spoilt)
    seen = over_http(script)
    assert seen.fault and said in seen.fault
    came = script.fault.after if script.fault else len(BURSTS) if "finish" in said else 0
    assert len(seen.content) == came, "what came before the fault was handed over"


@pytest.mark.parametrize(
    ("spoilt", "timeouts", "said"),
    [
        ({"wire": Wire(headers_at=60)}, Timeouts(first=0.2), "nothing came for 0.2 s before the first event"),
        ({"fault": Fault("hang")}, Timeouts(first=0.2), "nothing came for 0.2 s before the first event"),
        ({"fault": Fault("hang", after=2)}, Timeouts(between=0.3), "nothing came for 0.3 s after an event"),
        ({"fault": Fault("hang", after=2)}, Timeouts(total=0.5), "the stream took more than 0.5 s in all"),
    ],
)
def test_a_server_that_hangs(spoilt: dict[str, Any], timeouts: Timeouts, said: str) -> None:
    script = Script(BURSTS, **spoilt)
    for seen in (over_http(script, timeouts=timeouts), asyncio.run(follow(TruthSystem(script, timeouts)))):
        assert seen.fault == f"timeout: {said}"
        assert len(seen.content) == (script.fault.after if script.fault else 0)


@pytest.mark.parametrize("fault", [Fault("refuse"), Fault("error", 3), Fault("die"), Fault("garbage", 1)])
def test_the_twin_fails_as_the_server_does(fault: Fault) -> None:
    script = Script(BURSTS, fault=fault)
    twin = asyncio.run(follow(TruthSystem(script)))
    assert twin.fault and twin.content == over_http(script).content


def test_keep_alives_are_no_events() -> None:
    """Comments without end do not put off the timeout."""
    talking = Script((Burst(0.01), Burst(60)), wire=Wire(comments=True, cut=1, pause=0.01))
    silent = "timeout: nothing came for 0.3 s before the first event"
    assert over_http(talking, timeouts=Timeouts(first=0.3)).fault == silent


def test_streams_run_at_once() -> None:
    async def ask(system: OpenAISystem) -> list[Stream]:
        return await asyncio.gather(*(follow(system) for _ in range(20)))

    script = Script(steady(0.1, 0.01, 5), wire=Wire(counts="token_ids"))
    for stream in asking(script, ask):
        assert stream.content == [Piece("text", 1, "tok ")] * 5
        assert stream.content_times[-1] < 1.5, "one after the other they take 2.8 s"


def test_what_is_no_api_or_key() -> None:
    with pytest.raises(RequestError, match="chat and completions"):
        OpenAISystem("http://a", api="responses")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="API key"):
        OpenAISystem("http://a", api_key="secret\r\nX: y")
