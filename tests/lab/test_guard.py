"""The guard: what it refuses and what it passes, on contenders whose figures are known."""

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest

from phaseline.errors import PhaselineError
from phaseline.lab.contenders import PHASES, Contender
from phaseline.lab.experiments.base import Experiment, conduct
from phaseline.lab.guard import Check, Different, Noise, Replicates, Work
from phaseline.lab.guard_floors import Floors
from phaseline.lab.guard_proof import Proof
from phaseline.lab.guard_stats import Rules
from phaseline.lab.records import to_json
from phaseline.lab.systems.base import Ask
from support.contenders import Scripted

WORK = Work(prompt_tokens=20, output_tokens=5, asks=2, settle_s=0)
FLOORS = Floors().floor


def run(experiment: Experiment) -> dict[str, Any]:
    record = asyncio.run(conduct(experiment, lambda done, total, label: None, {}))
    to_json(record)  # plain data throughout
    return record


def check(
    contenders: Mapping[str, Contender], work: Work = WORK, floors: Mapping[str, float] = FLOORS, **rules: Any
) -> tuple[Check, dict[str, Any]]:
    made = Check(Replicates(contenders, work), floors, Rules(**rules))
    return made, run(made)


def noisy(seed: int, sigma: float = 0.01) -> Any:
    rng = random.Random(seed)
    return lambda: rng.lognormvariate(0, sigma)


def pair(head: Scripted, **base: Any) -> dict[str, Contender]:
    return {"base": Scripted("the base", noise=noisy(1), **base), "head": head}


def test_the_same_speed_passes() -> None:
    guard, record = check(pair(Scripted("the head", noise=noisy(2))))
    assert guard.status == record["status"] == Check.PASSED
    assert {(row["phase"], row["reference"], row["verdict"]) for row in record["results"]} == {
        ("prefill", "base", "kept"), ("decode", "base", "kept")
    }  # fmt: skip
    assert record["finding"].startswith("passed. prefill is ")
    assert len(record["replicates"]) in record["rules"]["looks"]


@pytest.mark.parametrize(
    ("read", "write", "slower"),
    [
        (0.00105, 0.01, ["prefill"]),
        (0.001, 0.0105, ["decode"]),
        (0.0005, 0.0105, ["decode"]),  # half the prefill time pays for nothing
        (0.0011, 0.011, ["decode", "prefill"]),
    ],
)
def test_a_phase_that_got_slower_is_refused(read: float, write: float, slower: list[str]) -> None:
    guard, record = check(pair(Scripted("the head", read, write, noise=noisy(2))))
    assert (guard.status, guard.slower()) == (Check.SLOWER, slower)
    assert record["finding"].startswith("refused. ") and "more than its floor of 1.0%" in record["finding"]
    for row in record["results"]:
        assert row["low"] < row["loss"] < row["high"]
        then, now = {"prefill": (0.001, read), "decode": (0.01, write)}[row["phase"]]
        assert row["loss"] == pytest.approx(now / then - 1, abs=0.02)


def test_what_is_plain_is_said_at_the_first_look() -> None:
    guard, record = check(pair(Scripted("the head", 0.0009, 0.013, noise=noisy(2))))
    assert guard.slower() == ["decode"] and len(record["replicates"]) == 12


def test_a_floor_allows_what_it_says() -> None:
    slow = Scripted("the head", 0.00105, noise=noisy(2, 0.002))
    floors = {"prefill": 0.08, "decode": 0.01}
    assert check(pair(slow), floors=floors, catch=0.1)[0].status == Check.PASSED


def test_small_losses_add_up_against_the_anchor() -> None:
    contenders = pair(Scripted("the head", 0.00104, noise=noisy(2)), read=0.00104)
    assert check(contenders)[0].status == Check.PASSED
    anchor = Scripted("the anchor", 0.001, noise=noisy(3))
    guard, record = check(contenders | {"anchor": anchor})
    assert (guard.status, guard.slower()) == (Check.SLOWER, ["prefill"])
    assert {(r["reference"], r["phase"]) for r in record["results"] if r["verdict"] == "slower"} == {
        ("anchor", "prefill")
    }
    assert "slower than the anchor" in record["finding"]


def test_other_answers_are_refused_before_any_time_is_taken() -> None:
    head = Scripted("the head", 0.0001, 0.001, answer=lambda ask: (1, 2, 4))
    guard, record = check(pair(head))
    assert guard.status == Check.DIFFERENT and record["results"] == []
    assert "the answers differ" in record["finding"] and "from token 3 on" in record["finding"]
    assert all(ask.max_tokens == 24 for _, ask in head.log)


def test_an_answer_that_is_cut_short_differs() -> None:
    head = Scripted("the head", answer=lambda ask: (1, 2))
    assert "from token 3 on: () after (3,)" in check(pair(head))[1]["finding"]


def test_one_that_answers_differently_each_time_is_told_from_two_that_differ() -> None:
    def fickle() -> Scripted:
        answers = iter(range(10**6))
        return Scripted("fickle", answer=lambda ask: (next(answers) // 3,))

    async def twice() -> None:
        replicates = Replicates({"base": fickle()}, WORK)
        for _ in range(2):
            await replicates.add()

    with pytest.raises(Different, match="base answers differently each time: prompt 2 of 3, from token 1 on"):
        asyncio.run(twice())
    steady = Scripted("steady", answer=lambda ask: (7,))
    finding = check({"base": steady, "head": fickle()})[1]["finding"]
    assert "base does not answer as head does" in finding or "head does not answer as base does" in finding
    speed_alone = Work(20, 5, 2, answers=False, settle_s=0)
    assert check({"base": steady, "head": fickle()}, work=speed_alone)[0].status == Check.PASSED


def test_every_replicate_starts_anew_in_an_order_of_its_own() -> None:
    log: list[tuple[str, Ask]] = []
    base, head = (Scripted(name, vocabulary=range(50), log=log) for name in ("base", "head"))
    check({"base": base, "head": head})
    assert base.starts == head.starts == 12 and not base.running and not head.running
    timed = [(name, ask) for name, ask in log if ask.max_tokens == 5]
    assert len({tuple(ask.prompt) for _, ask in timed}) == len(timed) == 12 * 2 * 2  # no cache can know a prompt
    assert all(len(ask.prompt) == 20 and ask.ignore_eos for _, ask in timed)
    turns = [[name for name, _ in timed[i : i + 2]] for i in range(0, len(timed), 2)]
    assert all(sorted(turn) == ["base", "head"] for turn in turns)
    assert 4 < sum(turn == ["base", "head"] for turn in turns) < 20


def test_one_thing_against_itself_measures_the_noise_and_raises_the_floors() -> None:
    def contenders(sigma: float) -> dict[str, Contender]:
        return {r: Scripted(r, noise=noisy(i, sigma)) for i, r in enumerate(("base", "head", "again"))}

    _, quiet = check(contenders(0.001))
    assert all(0 < quiet["noise"][phase] < 0.01 for phase in PHASES)
    assert {row["floor"] for row in quiet["results"]} == {0.01}
    _, loud = check(contenders(0.1), most=12)
    assert all(row["floor"] == loud["noise"][row["phase"]] > 0.02 for row in loud["results"])


def test_noise_ends_when_it_is_below_the_least_floor() -> None:
    def measure(sigma: float) -> dict[str, Any]:
        pair = {role: Scripted(role, noise=noisy(i, sigma)) for i, role in enumerate(("base", "again"))}
        return run(Noise(Replicates(pair, WORK), Rules(most=18)))

    quiet, loud = measure(0.001), measure(0.1)
    assert len(quiet["replicates"]) == 12 and len(loud["replicates"]) == 18
    assert max(quiet["noise"].values()) < 0.01 < min(loud["noise"].values())
    assert quiet["costs"] == pytest.approx({"prefill": 0.02, "decode": 0.01}, rel=0.01)


def test_too_noisy_to_tell() -> None:
    guard, record = check(pair(Scripted("the head", noise=noisy(2, 0.5))), most=12)
    assert guard.status == Check.UNKNOWN and record["finding"].startswith("not decided")


def test_an_interrupted_check_keeps_what_it_has() -> None:
    head = Scripted("the head")

    async def interrupt() -> dict[str, Any]:
        made = Check(Replicates(pair(head), Work(20, 5, 2, settle_s=0.001)), FLOORS, Rules())
        task = asyncio.create_task(conduct(made, lambda done, total, label: None, {}))
        while head.starts < 3:
            await asyncio.sleep(0)
        task.cancel()
        return await task

    record = asyncio.run(interrupt())
    assert record["partial"] is True and len(record["replicates"]) == 2
    assert record["finding"] == "nothing is known: 2 replicates, 12 needed" and not head.running


def test_a_contender_that_fails_ends_the_check() -> None:
    head = Scripted("the head")
    head.fails_after = 20
    with pytest.raises(PhaselineError, match="the head failed: scripted"):
        check(pair(head))
    assert not head.running


def test_a_prompt_from_a_cache_is_no_prefill() -> None:
    head = Scripted("the head")
    head.cached = 5
    with pytest.raises(PhaselineError, match="the head took 5 of 20 prompt tokens from a prefix cache"):
        check(pair(head))


class Printed(Scripted):
    """A command: it is not asked, and may say what it answered."""

    prompted = False


def test_commands_are_compared_by_what_they_print() -> None:
    silent = {role: Printed(role, answer=lambda ask: None) for role in ("base", "head")}
    with pytest.raises(PhaselineError, match="nothing says what was answered"):
        check(silent)
    assert check(silent, work=Work(asks=1, answers=False, settle_s=0))[0].status == Check.PASSED
    assert check({"base": Printed("base"), "head": Printed("head")})[0].status == Check.PASSED
    other = Printed("head", answer=lambda ask: (7,))
    assert "its own prompt" in check({"base": Printed("base"), "head": other})[1]["finding"]


def prove(make: Any, **rules: Any) -> tuple[Proof, dict[str, Any]]:
    proof = Proof(make, WORK, FLOORS, Rules(**rules), slowdown=0.05, trials=2)
    return proof, run(proof)


def test_a_proof_injects_each_slowdown_and_sees_it_refused() -> None:
    made: list[Scripted] = []

    def make(slow: Mapping[str, float]) -> Contender:
        read, write = (one * (1 + slow.get(p, 0)) for one, p in ((0.001, "prefill"), (0.01, "decode")))
        made.append(Scripted(f"slowed {slow}", read, write, noise=noisy(len(made))))
        return made[-1]

    proof, record = prove(make)
    assert proof.status == Check.PASSED and record["finding"].startswith("the guard works here")
    assert [(r["injected"], r["trials"], r["refused"], r["as_expected"]) for r in record["rates"]] == [
        ("nothing", 2, 0, 2), ("prefill", 2, 2, 2), ("decode", 2, 2, 2)
    ]  # fmt: skip
    assert len(made) == 12 and all(one.closed for one in made)
    prompts = [str(ask.prompt) for one in made for _, ask in one.log if ask.max_tokens == 5]
    assert len(set(prompts)) == len(prompts)  # also across trials: a server outlives them


def test_a_proof_fails_where_the_guard_does() -> None:
    def numb(slow: Mapping[str, float]) -> Contender:
        return Scripted("numb", noise=noisy(len(slow)))

    def crossed(slow: Mapping[str, float]) -> Contender:
        read, write = (one * (1 + slow.get(p, 0)) for one, p in ((0.001, "decode"), (0.01, "prefill")))
        return Scripted("crossed", read, write, noise=noisy(len(slow)))

    def jumpy(slow: Mapping[str, float]) -> Contender:
        jumpy.calls += 1  # type: ignore[attr-defined]
        return Scripted("jumpy", 0.001 * (1 + 0.2 * (jumpy.calls % 2)))  # type: ignore[attr-defined]

    jumpy.calls = 0  # type: ignore[attr-defined]
    for make in (numb, crossed, jumpy):
        proof, record = prove(make)
        assert proof.status == Check.SLOWER and record["finding"].startswith("THE GUARD FAILED HERE")
    seeds = iter(range(100))
    proof, record = prove(lambda slow: Scripted("loud", noise=noisy(next(seeds), 0.5)), most=12)
    assert proof.status == Check.UNKNOWN and "too noisy" in record["finding"]
    answers = iter(range(10**6))
    with pytest.raises(PhaselineError, match="cannot be proved"):
        prove(lambda slow: Scripted("fickle", answer=lambda ask: (next(answers),)))
