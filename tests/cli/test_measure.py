"""`phaseline measure`: the table and the record."""

import json
import subprocess
from pathlib import Path

import pytest

from support.command import COMMAND, ENVIRONMENT, Run
from support.kimi import write_kimi
from support.sparse import write_sparse

ROW = {
    *("phase", "mode", "tokens", "context", "streams", "chunk", "seconds"),
    *("tok_s", "flops", "bytes", "limit", "fraction"),
}


def test_the_table_and_the_record_of_one_measurement(phaseline: Run, plain: str, tmp_path: Path) -> None:
    out = tmp_path / "measure.json"
    done = phaseline("measure", plain, "--repeats", "2", "--out", str(out), "--threads", "1", "--chunk", "100")
    record = json.loads(out.read_text())
    assert (done.returncode, done.stderr) == (0, "")  # no terminal: no progress

    assert record["model"]["name"] == plain and record["build"]["threads"] == 1
    assert record["machine"]["ceilings"]["float_flops"] > 0
    rows = record["results"]
    assert all(row.keys() >= ROW and len(row["seconds"]) == 2 for row in rows)
    assert {row["phase"] for row in rows} == {"prefill", "decode"}
    assert {row["mode"] for row in rows} == {"walk", "eager", "layer", "chunk"}
    assert {row["limit"] for row in rows} <= {"launch", "bandwidth", "compute", "capacity", "unknown"}
    assert {row["chunk"] for row in rows if row["mode"] == "chunk"} == {100}

    lines = done.stdout.splitlines()
    assert plain in lines[0] and "1 threads" in lines[1] and "rounds: 2" in lines[2]
    assert max(map(len, lines[3 : lines.index(next(x for x in lines if x.startswith("ceilings")))])) <= 80
    for row in rows:
        size = row["tokens"] if row["phase"] == "prefill" else row["context"]
        start = [row["phase"], row["mode"], str(size), str(row["streams"])]
        (line,) = (line.split() for line in lines if line.split()[:4] == start)
        assert line[-2:] == [row["limit"], f"{row['fraction']:.0%}"]
        assert float(line[6]) == pytest.approx(row["tok_s"], rel=1e-3)
    assert any(line.startswith("ceilings: ") for line in lines)
    for ratio in record["phase_ratios"]:
        assert any(line.startswith(f"{ratio['mode']}: ") and " times decode's " in line for line in lines)


def test_a_model_that_carries_a_state_is_measured(phaseline: Run, tmp_path: Path) -> None:
    path = str(write_kimi(tmp_path / "kimi.gguf", context=640))
    done = phaseline("measure", path, "--repeats", "1", "--threads", "1", "--ops", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(done.stdout)
    assert {row["phase"] for row in record["results"]} == {"prefill", "decode"}
    delta = [row for row in record["ops"] if row["op"].startswith("delta attend")]
    assert {row["phase"] for row in delta} == {"prefill", "decode"} and all(row["median_s"] > 0 for row in delta)


def test_the_table_outlives_a_record_that_cannot_be_written(phaseline: Run, plain: str) -> None:
    done = phaseline("measure", plain, "--repeats", "1", "--threads", "1", "--out", "/dev/full")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "No space left" in done.stderr
    assert "\nceilings: " in done.stdout and "prefill" in done.stdout


def test_a_table_in_ascii(plain: str) -> None:
    command = [*COMMAND, "measure", plain, "--repeats", "1", "--threads", "1"]
    environment = ENVIRONMENT | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, encoding="ascii", timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "medians ? median deviations" in done.stdout


def test_json_is_all_there_is_on_standard_output(phaseline: Run, plain: str) -> None:
    done = phaseline("measure", plain, "--repeats", "1", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["rounds"] == 1


def test_operations_of_both_phases(phaseline: Run, plain: str, tmp_path: Path) -> None:
    out = tmp_path / "measure.json"
    done = phaseline("measure", plain, "--ops", "--repeats", "1", "--threads", "1", "--out", str(out))
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(out.read_text())
    lines = [line.split() for line in done.stdout.splitlines()]
    for step in record["op_steps"]:
        text = f"a {step['phase']} step "
        assert any(
            line.startswith(text) and f"{step['ratio']:.1%} of the step" in line for line in done.stdout.splitlines()
        )
        rows = [row for row in record["ops"] if row["phase"] == step["phase"]]
        assert sum(row["seconds"][0] for row in rows) == pytest.approx(step["sum_s"][0])
        for row in rows:
            name = row["op"].split()
            assert any(line[: len(name)] == name and line[-1] == f"{row['fraction']:.0%}" for line in lines)


def test_a_sparse_model_adds_dispatch_and_what_its_experts_cost(phaseline: Run, tmp_path: Path) -> None:
    path = str(write_sparse(tmp_path / "sparse.gguf", "olmoe", context=128))
    done = phaseline("measure", path, "--repeats", "1", "--threads", "1")
    assert (done.returncode, done.stderr) == (0, "")
    shown = " ".join(done.stdout.split())
    assert "prefill dispatch 64" in shown and "expected under uniform routing," in shown
    assert "64 tokens in one chunk:" in shown and "times dispatch row by row, where bytes allow" in shown
