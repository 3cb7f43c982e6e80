"""The comparison: who is asked what, in which order, and what becomes of it; on systems whose figures are known."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from phaseline import load
from phaseline.errors import PhaselineError, RequestError
from phaseline.lab.contenders import Contender, StreamContender
from phaseline.lab.experiments.base import conduct
from phaseline.lab.experiments.compare import Compare, Roles
from phaseline.lab.guard_commands import CommandContender
from phaseline.lab.records import to_json
from phaseline.lab.systems.base import Ask
from phaseline.lab.systems.openai_http import OpenAISystem
from phaseline.lab.systems.phaseline import PhaselineStreams
from phaseline.lab.systems.truth_engine import Costs
from phaseline.lab.systems.truth_script import Script, Wire
from phaseline.lab.systems.truth_server import serving
from support.contenders import Scripted
from support.tiny import write_llama

CONTRACT = {"phase", "mode", "tokens", "context", "streams", "chunk", "seconds", "tok_s", "traces"}
SMALL: dict[str, Any] = {"prompts": (10, 40), "context": 20, "tokens": 4, "rounds": 5, "settle_s": 0}


def compare(contenders: Sequence[Contender], roles: Roles, **settings: Any) -> dict[str, Any]:
    experiment = Compare(contenders, roles, **SMALL | settings)
    record = asyncio.run(conduct(experiment, lambda done, total, label: None, {}))
    to_json(record)
    return record


def noisy(seed: int) -> Any:
    rng = random.Random(seed)
    return lambda: rng.lognormvariate(0, 0.01)


def test_the_same_work_by_turns() -> None:
    log: list[tuple[str, Ask]] = []
    a, b = (Scripted(name, vocabulary=range(60), noise=noisy(i), log=log) for i, name in enumerate("ab"))
    record = compare([a, b], Roles(2))
    assert a.starts == b.starts == 5 and not a.running and not b.running
    timed = [(name, ask) for name, ask in log if ask.max_tokens != 8]
    assert len(log) == len(timed) + 10  # a warm-up for each start
    work = Counter((name, len(ask.prompt), ask.max_tokens) for name, ask in timed)
    assert work == {(name, *one): 5 for name in "ab" for one in ((10, 1), (40, 1), (20, 5))}
    prompts = [tuple(ask.prompt) for _, ask in log]
    assert len(set(prompts)) == len(prompts) and len({prompt[0] for prompt in prompts}) == len(prompts)
    rounds = [[(name, len(ask.prompt)) for name, ask in timed[i : i + 6]] for i in range(0, 30, 6)]
    assert all(len(set(one)) == 6 for one in rounds) and len(set(map(tuple, rounds))) == 5
    assert record["rounds"] == 5 and record["prompts_of"] == "token ids"
    assert all(row.keys() >= CONTRACT and len(row["seconds"]) == len(row["traces"]) == 5 for row in record["results"])


def test_where_they_stand() -> None:
    a = Scripted("a", read=0.001, write=0.01, noise=noisy(1))
    b = Scripted("b", read=0.01, write=0.01, noise=noisy(2))  # token by token
    record = compare([a, b], Roles(2))
    first, second = record["standings"]
    assert first["prefill_tok_s"] == pytest.approx(1000, rel=0.02) and first["prefill_tokens"] == 40
    assert first["phase_ratio"]["value"] == pytest.approx(10, rel=0.02)
    assert first["marginal_tok_s"] == pytest.approx(1000, rel=0.05)
    assert second["phase_ratio"]["value"] == pytest.approx(1, rel=0.02)
    assert second["worst_phase"] == "prefill" and second["worst_ratio"]["value"] == pytest.approx(0.1, rel=0.02)
    assert second["decode_of_reference"]["value"] == pytest.approx(1, rel=0.02)
    assert record["finding"].startswith("b is furthest behind in prefill, at 0.1 of the speed of a")
    assert "missing feature" in record["finding"] and record["noise"] is None
    rows = {(row["system"], row["phase"], row["tokens"]): row for row in record["results"]}
    assert rows["b", "prefill", 40]["tok_s"] == pytest.approx(100, rel=0.02)
    assert rows["b", "decode", 4]["context"] == 20 and rows["b", "decode", 4]["tok_s"] == pytest.approx(100, rel=0.02)


def test_parent_feature_and_noise() -> None:
    a, off, parent, again = (Scripted(name, read, noise=noisy(i)) for i, (name, read) in enumerate(
        (("a", 0.001), ("a,off", 0.004), ("parent", 0.002), ("a", 0.001))
    ))  # fmt: skip
    record = compare([a, off, parent, again], Roles(2, subject=0, parent=2, again=3, attributions=[(0, 1)]))
    attribution, before = record["denominators"]
    assert (attribution["kind"], attribution["of"], attribution["against"]) == ("attribution", "a", "a,off")
    assert attribution["prefill"]["value"] == pytest.approx(4, rel=0.05)
    assert (before["kind"], before["against"]) == ("parent", "parent")
    assert before["prefill"]["value"] == pytest.approx(2, rel=0.05)
    assert len(record["standings"]) == 2 and "parent" not in record["finding"]
    assert all(0 < record["noise"][phase] < 0.05 for phase in ("prefill", "decode"))
    assert {row["system"] for row in record["results"]} == {"a", "a,off", "parent", "a again"}
    assert [one["name"] for one in record["systems"]] == ["a", "a,off", "parent", "a again"]


def test_one_system_is_told_what_its_ratio_means() -> None:
    finding = compare([Scripted("a", read=0.01, write=0.01, noise=noisy(1))], Roles(1))["finding"]
    assert finding.startswith("a: phase ratio ") and "about 1" in finding and "no batched prefill" in finding


def test_samples_that_fail_are_left_out_and_told() -> None:
    a, b, c = (Scripted(name, noise=noisy(i)) for i, name in enumerate("abc"))
    b.fails_after = 9  # in its third run
    c.cached = 30  # of the prompts of 40
    record = compare([a, b, c], Roles(3))
    assert "samples failed and are left out" in record["finding"]
    rows = {(row["system"], row["phase"], row["tokens"]): row for row in record["results"]}
    assert any("b failed: scripted" in fault for row in record["results"] for fault in row["faults"])
    served = [seconds for row in record["results"] if row["system"] == "b" for seconds in row["seconds"]]
    assert len(served) == 15 and len(served) - served.count(None) == 9 - 3  # and three warm-ups
    assert rows["c", "prefill", 40]["tok_s"] is None and "from a prefix cache" in rows["c", "prefill", 40]["faults"][0]


def test_an_interrupted_comparison_counts_whole_rounds() -> None:
    a, b = Scripted("a", noise=noisy(1)), Scripted("b", noise=noisy(2))

    async def interrupt() -> dict[str, Any]:
        task = asyncio.create_task(
            conduct(Compare([a, b], Roles(2), **SMALL | {"settle_s": 0.001}), lambda done, total, label: None, {})
        )
        while len(a.log) + len(b.log) < 2 * 8 + 5:  # two rounds, and a part of the next
            await asyncio.sleep(0)
        task.cancel()
        return await task

    record = asyncio.run(interrupt())
    assert record["partial"] is True and not a.running and not b.running
    assert 2 * 6 < sum(len(row["seconds"]) for row in record["results"]) < 3 * 6
    assert record["standings"][1]["worst_ratio"] is not None
    json.loads(to_json(record))

    async def at_once() -> dict[str, Any]:
        task = asyncio.create_task(conduct(Compare([a, b], Roles(2), **SMALL), lambda done, total, label: None, {}))
        await asyncio.sleep(0)
        task.cancel()
        return await task

    assert asyncio.run(at_once())["finding"] == "b brought nothing to compare"


def test_one_that_does_not_start_at_all() -> None:
    b = Scripted("b")
    b.fails_after = 0
    a = Scripted("a")
    with pytest.raises(PhaselineError, match="b failed: scripted"):
        compare([a, b], Roles(2))
    assert not a.running and not b.running


@pytest.mark.parametrize("bad", [{"prompts": ()}, {"prompts": (0,)}, {"rounds": 0}, {"tokens": 0}, {"context": 0}])
def test_what_makes_no_sense(bad: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="at least 1"):
        compare([Scripted("a")], Roles(1), **bad)


def test_a_command_is_no_system() -> None:
    with pytest.raises(RequestError, match="guard takes it"):
        compare([CommandContender("true"), Scripted("a")], Roles(2))


def test_our_engine_beside_a_server_whose_steps_are_known(tmp_path: Any) -> None:
    """The server reads one token per step of 4 ms, and writes one per step."""
    script = Script(engine=Costs(chunk=1, prompt_s=0.004, decode_s=0.004), wire=Wire(counts="token_ids"))
    model = write_llama(tmp_path / "tiny.gguf", context=1024)

    async def run() -> dict[str, Any]:
        async with serving(script) as url:
            server = StreamContender("server", lambda: OpenAISystem(url, "truth"), lasting=True)
            ours = StreamContender("ours", lambda: PhaselineStreams(load(model, threads=1)), range(320))
            try:
                experiment = Compare([ours, server], Roles(2), **SMALL | {"rounds": 3})
                return await conduct(experiment, lambda done, total, label: None, {})
            finally:
                await ours.close()
                await server.close()

    record = asyncio.run(run())
    assert record["prompts_of"] == "words" and record["partial"] is False
    server = record["standings"][1]
    assert server["prefill_tokens"] == 40 and server["worst_phase"] is not None
    assert server["phase_ratio"]["value"] < 2 < record["standings"][0]["phase_ratio"]["value"]
    assert all(row["faults"] == [] for row in record["results"])
