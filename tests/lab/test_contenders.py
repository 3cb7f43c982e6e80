"""Systems as contenders: their phases, their text, and what cannot be read from a stream."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from phaseline.errors import PhaselineError, RequestError
from phaseline.lab.contenders import Contender, Reading, StreamContender, common_vocabulary, refuse_cached
from phaseline.lab.guard_commands import CommandContender
from phaseline.lab.prompts import WORDS
from phaseline.lab.systems.base import Ask
from phaseline.lab.systems.truth import TruthSystem
from phaseline.lab.systems.truth_script import Burst, Fault, Script, Wire, steady
from phaseline.lab.trace import Trace
from support.contenders import Scripted

SCRIPT = Script(steady(0.02, 0.005, 4), wire=Wire(counts="token_ids"))


def serve(script: Script, max_tokens: int = 4) -> Reading:
    async def run() -> Reading:
        contender = StreamContender("it", lambda: TruthSystem(script))
        await contender.start()
        try:
            return await contender.serve(Ask("one two three", max_tokens))
        finally:
            await contender.stop()
            await contender.close()

    return asyncio.run(run())


def test_both_phases_and_the_text_of_a_stream() -> None:
    reading = serve(SCRIPT)
    assert reading.answer == "tok " * 4 and reading.trace is not None
    times = [event.t_ns for event in reading.trace.events if event.bears_tokens]
    assert reading.costs == {
        "prefill": (times[0] - reading.trace.sent_ns) / 10**9, "decode": (times[-1] - times[0]) / 10**9 / 3
    }  # fmt: skip
    assert set(serve(SCRIPT, 1).costs) == {"prefill"}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (replace(SCRIPT, fault=Fault("refuse")), "it failed: scripted: refused with 503"),
        (replace(SCRIPT, fault=Fault("die", after=2)), "it failed: scripted: die"),
        (Script((Burst(0.01, 4),), wire=Wire(counts="token_ids")), "its answer came at once: it has no TPOT"),
    ],
)
def test_what_cannot_be_read(script: Script, said: str) -> None:
    with pytest.raises(PhaselineError, match=said):
        serve(script)


def test_a_stream_without_tokens_is_said_to_be_one() -> None:
    async def nothing() -> Any:
        class Silent(TruthSystem):
            async def _pieces(self, ask: Ask) -> Any:
                return
                yield

        contender = StreamContender("it", lambda: Silent(SCRIPT))
        await contender.start()
        return await contender.serve(Ask("one", 4))

    with pytest.raises(PhaselineError, match="it brought no token"):
        asyncio.run(nothing())


@pytest.mark.parametrize(("lasting", "made"), [(False, 3), (True, 1)])
def test_what_is_in_this_process_is_opened_for_each_start(lasting: bool, made: int) -> None:
    systems: list[TruthSystem] = []

    def make() -> TruthSystem:
        systems.append(TruthSystem(SCRIPT))
        return systems[-1]

    async def run() -> None:
        contender = StreamContender("it", make, lasting=lasting)
        for _ in range(3):
            await contender.start()
            assert (await contender.describe())["kind"] == "truth"
            await contender.stop()
        await contender.close()

    asyncio.run(run())
    assert len(systems) == made


def test_what_a_cache_has_served() -> None:
    for cached, prompt in ((10, 100), (None, 100), (0, 0)):
        refuse_cached("it", Trace(0, 1, prompt_tokens=prompt, cached_tokens=cached))
    refuse_cached("it", None)
    for cached, prompt in ((11, 100), (11, None)):
        with pytest.raises(PhaselineError, match="it took 11 of"):
            refuse_cached("it", Trace(0, 1, prompt_tokens=prompt, cached_tokens=cached))


@pytest.mark.parametrize(
    ("vocabularies", "common"),
    [([range(9), range(5)], range(5)), ([range(9), WORDS], WORDS), ([WORDS], WORDS)],
)
def test_all_are_asked_alike(vocabularies: Sequence[Any], common: Any) -> None:
    contenders: list[Contender] = [Scripted("a", vocabulary=one) for one in vocabularies]
    assert common_vocabulary(contenders) == common
    with pytest.raises(RequestError, match="they are commands"):
        common_vocabulary([CommandContender("true")])
