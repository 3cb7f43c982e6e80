"""The phase ratio, and what it is told to mean."""

from typing import Any

import pytest

from phaseline.lab.phase_ratio import phase_ratio, ratio_meaning


def prefill(tokens: int, tok_s: float | None) -> dict[str, Any]:
    return {"tokens": tokens, "tok_s": tok_s}


DECODE = {"context": 64, "tok_s": 50.0}


def test_prefill_near_the_stated_length_over_decode() -> None:
    ratio = phase_ratio([prefill(64, 900.0), prefill(300, 1000.0), prefill(1024, 800.0)], DECODE, 1250.0)
    assert ratio is not None
    assert ratio["meaning"].startswith("well above 1") and not ratio.pop("meaning").endswith(".")
    assert ratio == {
        "prefill_tokens": 300,
        "prefill_tok_s": 1000.0,
        "marginal_tok_s": 1250.0,
        "decode_context": 64,
        "decode_tok_s": 50.0,
        "ratio": 20.0,
        "marginal_ratio": 25.0,
    }


def test_a_per_token_engine_is_told_what_is_missing() -> None:
    ratio = phase_ratio([prefill(256, 51.0)], DECODE, None)
    assert ratio is not None and ratio["ratio"] == pytest.approx(1.02) and ratio["marginal_ratio"] is None
    assert "no batched prefill" in ratio["meaning"] and "missing feature" in ratio["meaning"]


def test_a_floor_does_not_hide_that_prefill_is_batched() -> None:
    """Short prompts only, whose time is a fixed cost: the slope tells."""
    ratio = phase_ratio([prefill(8, 40.0)], DECODE, 5000.0)
    assert ratio is not None and ratio["ratio"] < 1 and "prefill is batched" in ratio["meaning"]


@pytest.mark.parametrize(("ratio", "said"), [(0.5, "about 1"), (1.49, "about 1"), (1.5, "low"), (4.0, "well above 1")])
def test_meanings(ratio: float, said: str) -> None:
    assert ratio_meaning(ratio).startswith(said)


def test_reading_token_by_token_without_the_head_is_no_batching_either() -> None:
    assert ratio_meaning(2.0, walking=1.5).startswith("about 1") and ratio_meaning(2.0).startswith("low")
    ratio = phase_ratio([prefill(256, 100.0)], DECODE, None, walking=1.5)
    assert ratio is not None and "missing feature" in ratio["meaning"]


def test_without_rows_there_is_no_ratio() -> None:
    assert phase_ratio([], DECODE, None) is None
    assert phase_ratio([prefill(256, None)], DECODE, None) is None
    assert phase_ratio([prefill(256, 100.0)], {"context": 64, "tok_s": None}, None) is None
