"""`phaseline lab interference` and the ITL budget of other commands: tables, records, refusals."""

import json
from pathlib import Path

import pytest

from phaseline.lab.systems.truth import truth_server
from phaseline.lab.systems.truth_engine import Costs
from phaseline.lab.systems.truth_script import Script, Wire
from support.command import Run

SMALL = ("--intruder-tokens", "60", "--victim-tokens", "4", "--arrival-step", "6", "--repeats", "2")


def test_our_engine_over_chunks_and_a_budget(phaseline: Run, plain: str, tmp_path: Path) -> None:
    out = tmp_path / "interference.json"
    options = ("--chunks", "0,16", "--itl-budget", "0.001", "--victims", "2", "--threads", "1", "--out", str(out))
    done = phaseline("lab", "interference", plain, *SMALL, *options)
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(out.read_text())
    assert record["experiment"] == "interference" and record["partial"] is False
    assert [(row["setting"], row["most_stalls"]) for row in record["results"]] == [
        ("whole", 1), ("chunk 16", 4), ("budget 0.001 ms", 30)
    ]  # fmt: skip
    assert all(row["errors"] == [] and row["streams"] == 2 and row["tokens"] == 60 for row in record["results"])
    assert [drawn["setting"] for drawn in record["timelines"]] == ["whole", "chunk 16", "budget 0.001 ms"]
    assert record["model"]["name"] == plain and record["machine"]["cores"] >= 1
    assert record["finding"] in done.stdout.replace("\n", " ") or record["finding"][:60] in done.stdout
    for row in record["results"]:
        (line,) = (line for line in done.stdout.splitlines() if line.strip().startswith(f"{row['setting']} "))
        assert f"{row['worst_gap_s'] * 1e3:.4g}"[:4] in line and f"of {row['most_stalls']}" in line


def test_the_prompt_is_as_long_as_the_context_allows(phaseline: Run, plain: str) -> None:
    """The usual 2,000 tokens do not fit; lengths that are asked for stay as they are."""
    scene = ("--victim-tokens", "4", "--arrival-step", "6", "--repeats", "1", "--chunks", "64", "--context", "128")
    done = phaseline("lab", "interference", plain, *scene, "--threads", "1", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    (row,) = json.loads(done.stdout)["results"]
    assert row["tokens"] == 120 and row["errors"] == []
    refused = phaseline("lab", "interference", plain, *scene, "--threads", "1", "--intruder-tokens", "2000")
    assert refused.returncode == 2 and "the context holds 128 tokens" in refused.stderr


def test_a_server_whose_chunk_is_known(phaseline: Run) -> None:
    script = Script(engine=Costs(chunk=64, prompt_s=0.0003, decode_s=0.012), wire=Wire(counts="token_ids"))
    options = ("--intruder-tokens", "1000", "--repeats", "1", "--chunks", "64", "--no-calibrate", "--json")
    with truth_server(script) as server:
        done = phaseline("lab", "interference", "truth", "--base-url", server.url, *options)
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(done.stdout)
    (row,) = record["results"]
    assert row["most_stalls"] == 16 and row["tokens"] == 1000 and row["outlived"]
    assert 0 < row["stalls"][0] <= 17, "a busy machine may hold up one more gap"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--chunks", "1,x"), "not a list of chunk sizes"),
        (("--chunks", ""), "not a list of chunk sizes"),
        (("--victims", "0"), "at least one victim"),
        (("--arrival-step", "1"), "arrival at token 1"),
        (("--stream-tokens", "9"), "ends before token 32"),
        (("--itl-budget", "-1"), "must be a number above 0"),
        (("--base-url", "http://127.0.0.1:9", "--chunks", "1,2"), "only our own engine"),
        (("--base-url", "http://127.0.0.1:9", "--itl-budget", "5"), "a server keeps its own settings"),
    ],
)
def test_what_is_refused(phaseline: Run, plain: str, options: tuple[str, ...], said: str) -> None:
    done = phaseline("lab", "interference", plain, "--repeats", "1", "--no-calibrate", *options)
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_budget_changes_no_answer(phaseline: Run, plain: str) -> None:
    plainly, kept = (
        phaseline("run", plain, "one two three", "--max-tokens", "8", *options)
        for options in ((), ("--itl-budget", "30"))
    )
    assert kept.returncode == 0 and kept.stdout == plainly.stdout
    refused = phaseline("run", plain, "one", "--itl-budget", "0")
    assert refused.returncode == 2 and "--itl-budget 0: it must be a number above 0" in refused.stderr
