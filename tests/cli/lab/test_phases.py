"""`phaseline lab prefill`, `decode`, `batch` and `regime`: tables, records, and what is refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from phaseline.lab.systems.truth import truth_server
from phaseline.lab.systems.truth_engine import Costs
from phaseline.lab.systems.truth_script import Script, Wire
from support.command import Run

QUICK = {
    "prefill": ("--lengths", "4,16,64", "--decode-context", "32"),
    "decode": ("--contexts", "32,64", "--variants", "bf16"),
    "batch": ("--streams", "1,2", "--stored", "32"),
    "regime": ("--tokens", "32", "--stored", "32", "--streams", "1"),
}
ROW = {"phase", "mode", "tokens", "context", "streams", "chunk", "seconds", "tok_s", "limit", "fraction"}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A batched engine with all costs known."""
    costs = Costs(64, prompt_s=1e-4, decode_s=0.002, row_s=0.0005)
    with truth_server(Script(engine=costs, wire=Wire(counts="token_ids"))) as server:
        yield server.url


@pytest.fixture(scope="module")
def per_token_server() -> Iterator[str]:
    with truth_server(Script(engine=Costs(1, prompt_s=0.002, decode_s=0.002))) as server:
        yield server.url


def lines_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


@pytest.fixture(scope="module")
def ours(phaseline: Run, plain: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, dict[str, Any]]]:
    """What each command prints of our engine, and its record."""
    found = {}
    for name, options in QUICK.items():
        out = tmp_path_factory.mktemp("records") / f"{name}.json"
        done = phaseline("lab", name, plain, *options, "--repeats", "1", "--threads", "1", "--out", str(out))
        assert (done.returncode, done.stderr) == (0, "")
        found[name] = (done.stdout, json.loads(out.read_text()))
    return found


@pytest.mark.parametrize("name", QUICK)
def test_our_engine(ours: dict[str, tuple[str, dict[str, Any]]], name: str) -> None:
    printed, record = ours[name]
    assert record["experiment"] == name and record["partial"] is False
    assert record.keys() >= {"model", "machine", "build", "version", "date", "command", "results", "ceilings"}
    assert record["results"] and all(row.keys() >= ROW for row in record["results"])
    assert record["finding"] in printed
    assert all(len(line) <= 100 for line in printed.splitlines() if line.startswith(" ") and " - " not in line)


def test_the_tables_hold_the_rows(ours: dict[str, tuple[str, dict[str, Any]]]) -> None:
    printed, record = ours["batch"]
    for row in record["results"]:
        (line,) = (line for line in lines_of(printed) if line[:1] == [str(row["streams"])])
        assert float(line[1]) == pytest.approx(row["median_s"] * 1e3, rel=1e-3)
        assert float(line[3]) == pytest.approx(row["tok_s"], rel=1e-3)


def test_regime_shows_its_evidence_and_every_operation(ours: dict[str, tuple[str, dict[str, Any]]]) -> None:
    printed, _ = ours["regime"]
    assert "prefill of 32 tokens: " in printed and "decode of 1 stream at context 32: " in printed
    assert "of the time, the ceilings explain: arithmetic" in printed
    assert "weights as q8_0: time x" in printed and "half the rows: time x" in printed
    tables = [line for line in lines_of(printed) if line[1:3] == ["linear", "attn_output"]]
    assert len(tables) == 2 and all(len(line) == 11 for line in tables), "a factor for each intervention"


@pytest.mark.parametrize("name", QUICK)
def test_a_server(phaseline: Run, server: str, name: str) -> None:
    options = [option for option in QUICK[name] if option not in ("--variants", "bf16")]
    done = phaseline("lab", name, "--base-url", server, *options, "--repeats", "1", "--no-calibrate", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(done.stdout)
    assert record["system"]["name"].startswith("openai") and record["results"] and "ceilings" not in record
    assert record["finding"] and "error" not in record


def test_a_per_token_server_is_told_what_that_means(phaseline: Run, per_token_server: str) -> None:
    for name, options in (("prefill", ("--lengths", "4,16,64")), ("regime", QUICK["regime"])):
        done = phaseline("lab", name, "--base-url", per_token_server, *options, "--repeats", "1", "--no-calibrate")
        assert done.returncode == 0 and "no batched prefill" in done.stdout, name


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("prefill", ("--lengths", "0"), "whole numbers above 0"),
        ("prefill", ("--repeats", "0"), "--repeats 0: "),
        ("decode", ("--variants", "q3"), "variant 'q3' is unknown; supported: eager, q8_0, bf16, f32-state"),
        ("batch", ("--stored", "0"), "at least one of each"),
        ("regime", ("--tokens", "0"), "at least 1 of each"),
        ("regime", ("--streams", "99"), "99 streams: the engine was loaded for at most 16"),
        ("prefill", ("--numerics", "reference"), "not a system to measure"),
    ],
)
def test_what_is_refused(phaseline: Run, plain: str, name: str, options: tuple[str, ...], said: str) -> None:
    done = phaseline("lab", name, plain, *options)
    assert (done.returncode, done.stdout) == (2, "") and len(done.stderr.splitlines()) == 1
    assert said in done.stderr


def test_a_prompt_beyond_the_context_is_a_row_without_a_time(phaseline: Run, plain: str) -> None:
    done = phaseline("lab", "prefill", plain, "--lengths", "4,16,64,300", "--repeats", "1", "--threads", "1")
    assert done.returncode == 0 and "300 prefill tokens could not be measured: " in done.stdout


def test_a_server_that_is_not_there(phaseline: Run) -> None:
    done = phaseline("lab", "prefill", "--base-url", "http://127.0.0.1:9", "--no-calibrate")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
