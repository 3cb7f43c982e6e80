"""Where systems stand: ratios of known times, and what is said of them."""

import datetime as dt
from collections.abc import Sequence
from pathlib import Path

import pytest

from phaseline.errors import FileFormatError, PhaselineError
from phaseline.lab.standings import Published, Ratio, Rounds, Standing, alone, measured_denominator, noise, sentence

TODAY = dt.date(2026, 5, 1)
STEADY = (0.98, 1.0, 1.02, 1.0, 0.99)


def standing(name: str, read: Sequence[tuple[int, float]], write: float, pace: Rounds = STEADY) -> Standing:
    """Times `pace` in each round; `read`: tokens and seconds of a prompt."""

    def rounds(seconds: float) -> Rounds:
        return [None if p is None else seconds * p for p in pace]

    return Standing(name, [(tokens, rounds(seconds)) for tokens, seconds in read], rounds(write), context=100)


FAST = standing("fast", [(100, 0.1), (500, 0.3)], 0.01)
PER_TOKEN = standing("per token", [(100, 1.0), (500, 5.0)], 0.01, STEADY[::-1])
SLOW_WRITER = standing("slow writer", [(100, 0.1), (500, 0.3)], 0.02, STEADY[::-1])
NO_STATE = standing("no state", [(100, 0.1), (500, 0.3)], 0.09, STEADY[::-1])


def test_rates_and_ratios() -> None:
    assert FAST.prefill_tok_s == pytest.approx(500 / 0.3) and FAST.length == 500
    assert FAST.marginal_tok_s == pytest.approx(400 / 0.2)
    assert FAST.decode_tok_s == pytest.approx(100)
    assert FAST.phase_ratio is not None and FAST.phase_ratio.value == pytest.approx(500 / 0.3 / 100)
    assert PER_TOKEN.phase_ratio is not None and PER_TOKEN.phase_ratio.value == pytest.approx(1)
    ratio = PER_TOKEN.against(FAST, "prefill")
    assert ratio is not None and ratio.value == pytest.approx(0.06, rel=0.05)
    assert ratio.low is not None and ratio.high is not None and ratio.low <= ratio.value <= ratio.high
    worst = SLOW_WRITER.worst(FAST)
    assert worst is not None and worst[0] == "decode" and worst[1].value == pytest.approx(0.5, rel=0.05)


def test_a_ratio_is_of_whole_rounds() -> None:
    assert Ratio.of([2.0, 30.0, None, 4.0], [1.0, 10.0, 1.0, None]) == Ratio(2.5, 2.0, 3.0)
    assert Ratio.of([2.0], [1.0]) == Ratio(2.0, None, None)
    assert Ratio.of([None, 1.0], [1.0, None]) is None
    assert Ratio.of([], []) is None
    assert Ratio(2.0, 1.0, 3.0).scaled(2) == Ratio(4.0, 2.0, 6.0)
    assert [Ratio(1.2, 1.1, high).below(1.5) for high in (1.4, 1.6, None)] == [True, None, True]
    assert [Ratio(1.2, low, 1.3).certain for low in (1.1, 0.9, None)] == [True, False, False]


def test_what_failed_in_every_round_is_unknown() -> None:
    failed = standing("failed", [(100, 0.1)], 0.01, [None] * 5)
    assert failed.prefill_tok_s is None and failed.decode_tok_s is None and failed.marginal_tok_s is None
    assert failed.worst(FAST) is None and failed.phase_ratio is None
    assert sentence(failed, FAST) == alone(failed) == "failed brought nothing to compare"


def test_one_length_has_no_slope() -> None:
    assert standing("short", [(100, 0.1)], 0.01).marginal_tok_s is None
    assert standing("odd", [(100, 0.1), (200, 0.1)], 0.01).marginal_tok_s is None


@pytest.mark.parametrize(
    ("one", "other", "parts"),
    [
        (PER_TOKEN, FAST, ["per token is furthest behind in prefill, at 0.06 of the speed of fast", "phase ratio 1)",
                           "missing feature, batched prefill, not like tuning"]),
        (SLOW_WRITER, FAST, ["slow writer is furthest behind in decode, at 0.5 of", "looks like tuning, not"]),
        (NO_STATE, FAST, ["no state is furthest behind in decode", "a token takes about as long as the whole prompt",
                          "missing feature, kept keys and values"]),
        (FAST, PER_TOKEN, ["fast is behind in neither phase; per token is furthest behind in prefill",
                           "missing feature"]),
        (standing("slow reader", [(100, 0.2), (500, 0.6)], 0.01, STEADY[::-1]), FAST,
         ["furthest behind in prefill, at 0.5 of", "its phase ratio is 8.3: it looks like tuning"]),
        (standing("unclear", [(100, 0.5), (500, 3.3)], 0.01, (0.7, 1.6, 1.0, 1.0, 1.0)),
         standing("fast", [(100, 0.1), (500, 0.3)], 0.01, (1.0,) * 5),
         ["unclear is furthest behind in prefill", "looks like tuning"]),
        (standing("twin", [(100, 0.1), (500, 0.3)], 0.01, STEADY[::-1]), FAST,
         ["twin and fast differ in neither phase"]),
    ],
)  # fmt: skip
def test_one_plain_sentence(one: Standing, other: Standing, parts: list[str]) -> None:
    said = sentence(one, other)
    for part in parts:
        assert part in said


def test_a_ratio_near_the_limit_is_left_open() -> None:
    pace = (1.0, 1.4, 0.7, 1.2, 0.8)
    unclear = Standing("unclear", [(500, [3.3] * 5)], [0.01 * p for p in pace], 100)
    fast = Standing("fast", [(500, [0.3] * 5)], [0.01 * p for p in pace], 100)
    assert "more rounds must tell a missing feature, batched prefill, from tuning" in sentence(unclear, fast)
    assert "more rounds must tell" in alone(unclear)


def test_what_a_phase_ratio_says_alone() -> None:
    assert "phase ratio 16.7, well above 1" in alone(FAST)
    assert "phase ratio 1, about 1: this engine has no batched prefill" in alone(PER_TOKEN)


def test_the_noise_is_the_far_end_of_the_interval() -> None:
    found = noise(FAST, standing("fast", [(100, 0.1), (500, 0.3)], 0.01, STEADY[::-1]))
    assert found["prefill"] == pytest.approx(found["decode"]) and 0.01 < (found["decode"] or 0) < 0.06
    single = standing("fast", [(100, 0.1)], 0.01, [1.0])
    assert noise(single, single) == {"prefill": None, "decode": None}


GOOD = """
prefill_tok_s = 1000
decode_tok_s = 50.0
date = 2026-01-31
expires = 2026-04-30
commit = "0123abc"
command = "phaseline lab compare"
"""


def test_denominators_are_labelled(tmp_path: Path) -> None:
    path = tmp_path / "published.toml"
    path.write_text(GOOD)
    published = Published.read(path)
    row = published.denominator(FAST, TODAY)
    assert (row["kind"], row["date"], row["expires"]) == ("published", "2026-01-31", "2026-04-30") and row["expired"]
    assert row["commit"] == "0123abc" and row["command"] == "phaseline lab compare"
    assert row["prefill"]["value"] == pytest.approx(5 / 3)
    assert row["decode"] == {"value": 2.0, "low": None, "high": None}
    assert published.denominator(FAST, dt.date(2026, 4, 30))["expired"] is False
    row = measured_denominator("parent", FAST, SLOW_WRITER, TODAY)
    assert (row["of"], row["against"], row["kind"], row["date"]) == ("fast", "slow writer", "parent", "2026-05-01")
    assert [row[phase]["value"] for phase in ("prefill", "decode")] == pytest.approx([1, 2], rel=0.05)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prefill_tok_s", "is not TOML"),
        (GOOD.replace('commit = "0123abc"\n', ""), "have exactly the keys prefill_tok_s, decode_tok_s, date"),
        (GOOD + "more = 1", "have exactly the keys"),
        (GOOD.replace("50.0", "0"), "decode_tok_s = 0 must be a number above 0"),
        (GOOD.replace("50.0", "true"), "decode_tok_s = True must be a number"),
        (GOOD.replace("2026-01-31", "2026-01-31T10:00:00"), "must be a date such as"),
        (GOOD.replace("2026-01-31", '"January"'), "must be a date such as"),
        (GOOD.replace('"0123abc"', "123"), "commit = 123 must be a text"),
    ],
)
def test_what_is_wrong_with_published_figures_is_said(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "published.toml"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=said):
        Published.read(path)


def test_published_figures_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(PhaselineError, match="cannot read the published figures"):
        Published.read(tmp_path / "none.toml")
