"""`phaseline lab chunk`: the table, the record and its advice."""

import json
from pathlib import Path

import pytest

from support.command import Run

SMALL = ("--intruder-tokens", "64", "--victim-tokens", "4", "--arrival-step", "6", "--repeats", "2", "--threads", "1")


def test_sizes_and_the_answer_that_was_tried(phaseline: Run, plain: str, tmp_path: Path) -> None:
    out = tmp_path / "chunk.json"
    options = ("--sizes", "8,16,64", "--itl-budget", "100000", "--out", str(out))
    done = phaseline("lab", "chunk", plain, *SMALL, *options)
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(out.read_text())
    assert [row["size"] for row in record["results"]] == [8, 16, 64] == [p["size"] for p in record["frontier"]]
    assert record["recommendation"]["chunk"] == 64 and record["cost"]["base_s"] > 0
    assert [row["setting"] for row in record["checks"]] == ["budget 100000 ms", "chunk 64"]
    assert "take --chunk 64" in done.stdout
    for first in ("8", "16", "64", "budget 100000 ms", "chunk 64"):
        assert any(line.strip().startswith(f"{first} ") for line in done.stdout.splitlines())


def test_without_a_budget_nothing_is_advised(phaseline: Run, plain: str) -> None:
    done = phaseline("lab", "chunk", plain, *SMALL, "--sizes", "8,16,64", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(done.stdout)
    assert record["recommendation"] is None and record["checks"] == []


def test_the_usual_sizes_go_as_far_as_the_prompt(phaseline: Run, plain: str) -> None:
    """Which goes as far as the model's context."""
    options = ("--victim-tokens", "4", "--arrival-step", "6", "--repeats", "1", "--threads", "1", "--json")
    done = phaseline("lab", "chunk", plain, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert [row["size"] for row in json.loads(done.stdout)["results"]] == [8, 16, 32, 64, 128]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--sizes", "8,16"), "at least three sizes"),
        (("--sizes", "0,8,16"), "whole numbers above 0"),
        (("--sizes", "8,16,65"), "more than the prompt of 64"),
        (("--itl-budget", "0"), "must be above 0"),
    ],
)
def test_what_is_refused(phaseline: Run, plain: str, options: tuple[str, ...], said: str) -> None:
    done = phaseline("lab", "chunk", plain, *SMALL, "--sizes", "8,16,64", *options)
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and len(done.stderr.splitlines()) == 1
