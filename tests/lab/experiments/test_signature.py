"""Limits from outside: what scaling shows is inferred, what it does not show is unknown."""

import asyncio
from typing import Any

import pytest

from phaseline.errors import RequestError
from phaseline.lab.experiments.base import conduct
from phaseline.lab.experiments.signature import Signature, analyse
from phaseline.lab.experiments.sweep import cell_row, decode_cell
from phaseline.lab.systems.truth import TruthSystem
from phaseline.lab.systems.truth_engine import Costs
from phaseline.lab.systems.truth_script import Fault, Script, Wire
from support.sweeps import decode_row, prefill_row, trace

PACES = (1.0, 1.01, 0.99)


def system(
    *, prompt: float = 2e-4, floor: float = 0.01, shared: float = 0.01, own: float = 0.001, state: float = 0.0
) -> list[dict[str, Any]]:
    """Rows of a system: a prompt costs at least a floor; a decode step a shared part and one for each stream, of which
    `state` is per stored position."""
    made = [prefill_row(n, [max(floor, prompt * n) * pace for pace in PACES]) for n in (128, 256, 512)]
    made.append(decode_row(128, [(shared + own + state * 128) * pace for pace in PACES]))
    made += [decode_row(512, [(shared + (own + state * 512) * n) * pace for pace in PACES], n) for n in (1, 2, 8)]
    return made


def claims(rows: list[dict[str, Any]], *streams: int) -> dict[str, dict[str, Any]]:
    return {row["label"]: row for row in analyse(rows, streams)["results"]}


PREFILL, ONE, EIGHT = "prefill of 512 tokens", "decode of 1 stream at context 512", "decode of 8 streams at context 512"


def test_a_batched_engine_is_inferred_to_compute_in_prefill() -> None:
    found = claims(system(), 1, 8)
    assert list(found) == [PREFILL, ONE, EIGHT]
    assert (found[PREFILL]["limit"], found[PREFILL]["inferred"]) == ("compute", True)
    assert "2 times the tokens take 2.00 times the time" in found[PREFILL]["evidence"]
    for label in (ONE, EIGHT):
        assert (found[label]["limit"], found[label]["inferred"]) == ("unknown", False)
        assert "launching and reading the weights look alike from outside" in found[label]["evidence"][1]


def test_every_claim_is_inferred_or_unknown() -> None:
    for options in ({}, {"own": 0.02}, {"own": 1e-4, "state": 1e-4}, {"prompt": 1e-9}, {"floor": 0.06}):
        for row in claims(system(**options), 1, 8).values():
            assert row["inferred"] == (row["limit"] != "unknown") and row["fraction"] is None and row["evidence"]


def test_a_per_token_engine_is_told_what_its_ratio_means() -> None:
    found = claims(system(prompt=0.011, floor=0.0), 1)
    assert found[PREFILL]["limit"] == "unknown"
    text = " ".join(found[PREFILL]["evidence"])
    assert "no batched prefill" in text and "limited by what limits decode" in text
    assert analyse(system(prompt=0.011, floor=0.0), [1])["phase_ratio"]["ratio"] == pytest.approx(1, rel=0.02)


def test_time_that_does_not_grow_is_not_arithmetic() -> None:
    found = claims(system(prompt=1e-9), 1)
    assert found[PREFILL]["limit"] == "unknown" and "arithmetic is not the limit" in found[PREFILL]["evidence"][1]


def test_time_that_grows_a_little_is_neither() -> None:
    found = claims(system(floor=0.07), 1)
    assert found[PREFILL]["limit"] == "unknown" and "neither rules" in found[PREFILL]["evidence"][-1]


def test_state_that_grows_with_the_context_is_read() -> None:
    found = claims(system(own=1e-4, state=2e-5), 1, 8)
    assert (found[EIGHT]["limit"], found[EIGHT]["inferred"]) == ("bandwidth", True)
    assert "99% of what comes with each grows with its context" in found[EIGHT]["evidence"][1]


def test_own_parts_that_do_not_are_arithmetic() -> None:
    found = claims(system(own=0.01), 8)
    assert (found[EIGHT]["limit"], found[EIGHT]["inferred"]) == ("compute", True)


def test_one_stream_that_shares_nothing_stays_unknown() -> None:
    found = claims(system(shared=1e-4, own=0.01), 1)
    assert found[ONE]["limit"] == "unknown" and "does not batch them" in found[ONE]["evidence"][1]


@pytest.mark.parametrize(("begin", "limit"), [(1.2, "unknown"), (9.0, "capacity")])
def test_waiting_for_others_to_end(begin: float, limit: str) -> None:
    """Alone a stream begins after 1 s: two prompts, one after the other, may keep one waiting for some time."""
    late = cell_row(decode_cell(512, 2, tokens=2), [[trace([1, 1.1]), trace([begin * 2, begin * 2 + 0.1])]])
    found = claims([*system()[:5], late], 2)
    assert found["decode of 2 streams at context 512"]["limit"] == limit


def test_noise_claims_nothing() -> None:
    wild = (0.5, 1.0, 1.6)
    rows = [prefill_row(n, [2e-4 * n * pace for pace in wild]) for n in (128, 256, 512)]
    rows += [decode_row(512, [0.01 * n * pace for pace in wild], n) for n in (1, 8)]
    for row in claims(rows, 1, 8).values():
        assert row["limit"] == "unknown" and "too noisy to tell" in row["evidence"][0]
    bent = [*system()[:4], *(decode_row(512, [t] * 3, n) for n, t in ((1, 0.01), (2, 0.05), (8, 0.02)))]
    assert "miss a straight line" in claims(bent, 8)[EIGHT]["evidence"][0]


def test_nothing_measured_is_an_error() -> None:
    failed = cell_row(decode_cell(512), [[trace([], error="broken")]])
    record = analyse([failed], [1])
    assert record["error"] == "no time is known of this system: broken" and record["finding"] == "Nothing was measured."


def test_the_experiment_on_a_scripted_engine() -> None:
    costs = Costs(512, prompt_s=0.0002, decode_s=0.004, row_s=0.0005)
    target = TruthSystem(Script(engine=costs, wire=Wire(counts="token_ids")))
    record = asyncio.run(
        conduct(Signature(target, tokens=128, context=64, streams=(4,), rounds=1), lambda *_: None, {})
    )
    assert [(r["phase"], r["tokens"], r["context"], r["streams"]) for r in record["signature"]] == [
        *(("prefill", n, 0, 1) for n in (32, 64, 128)),
        ("decode", 24, 16, 1),
        *(("decode", 24, 64, n) for n in (1, 2, 4)),
    ]
    assert [row["label"] for row in record["results"]] == ["prefill of 128 tokens", "decode of 4 streams at context 64"]
    assert record["phase_ratio"]["prefill_tokens"] == 128


def test_a_system_that_refuses_everything() -> None:
    target = TruthSystem(Script(engine=Costs(1, 0.001, 0.001), fault=Fault("refuse")))
    record = asyncio.run(conduct(Signature(target, tokens=8, context=8, streams=(2,)), lambda *_: None, {}))
    assert record["error"] == "no time is known of this system: scripted: refused with 503"
    with pytest.raises(RequestError, match="at least 1 of each"):
        Signature(target, tokens=0)
