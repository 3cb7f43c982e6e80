"""`phaseline lab load`: the field's flags, and the faults that a load meets."""

import csv
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phaseline.cli.main import main
from phaseline.lab.systems.truth import TruthServer, truth_server
from phaseline.lab.systems.truth_engine import Costs
from phaseline.lab.systems.truth_script import Fault, Script, Wire, steady
from support.command import Run, Start

SCRIPT = Script(engine=Costs(chunk=64, prompt_s=1e-4, decode_s=1e-3), wire=Wire(counts="token_ids", cached_tokens=0))
FAST = ("lab", "load", "--no-calibrate", "--random-input-len", "8", "--random-output-len", "3")

SUMMARY_KEYS = {
    *("duration", "completed", "failed", "total_input_tokens", "total_output_tokens"),
    *("request_throughput", "request_goodput", "output_throughput", "total_token_throughput"),
    *(f"{how}_{what}_ms" for how in ("mean", "median", "p99") for what in ("ttft", "tpot", "itl", "e2el")),
}


@pytest.fixture(scope="module")
def server() -> Iterator[TruthServer]:
    with truth_server(SCRIPT) as running:
        yield running


def test_the_usual_flags_make_the_usual_summary(phaseline: Run, server: TruthServer, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    done = phaseline(
        *("lab", "load", "--no-calibrate", "--base-url", server.url, "--model", "truth", "--dataset-name", "random"),
        *("--num-prompts", "12", "--request-rate", "200", "--burstiness", "0.5", "--max-concurrency", "8"),
        *("--random-input-len", "8", "--random-output-len", "3", "--num-warmups", "2", "--ignore-eos", "--seed", "7"),
        *("--goodput", "ttft:5000", "tpot:5000", "e2el:9000", "--save-result", "--result-dir", str(tmp_path)),
        *("--export", str(rows)),
    )
    assert (done.returncode, done.stderr) == (0, "")
    (saved,) = tmp_path.glob("phaseline-load-*.json")
    record = json.loads(saved.read_text())
    summary, (run,) = record["summary"], record["runs"]
    assert summary.keys() >= SUMMARY_KEYS and summary == run["summary"]
    assert (summary["completed"], summary["total_input_tokens"], summary["total_output_tokens"]) == (12, 96, 36)
    assert summary["slo_attainment"] == summary["slo_attainment_from_due"] == 1
    assert (run["request_rate"], run["burstiness"], run["max_concurrency"]) == (200, 0.5, 8)
    assert len(record["traces"]) == 12 and all(one["due_ns"] is not None for one in record["traces"])
    exported = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [(row["run"], row["request"], row["slo_met"]) for row in exported] == [(0, n, True) for n in range(12)]
    lines = done.stdout.splitlines()
    assert lines[1] == record["finding"] and "TTFT from due" in done.stdout


def test_a_run_without_a_seed_asks_what_no_run_before_it_asked(phaseline: Run, server: TruthServer) -> None:
    def record(*options: str) -> Any:
        return json.loads(phaseline(*FAST, "--base-url", server.url, "--num-prompts", "2", "--json", *options).stdout)

    first, other = record(), record()
    again = record("--seed", str(first["seed"]))
    assert first["seed"] != other["seed"] and first["requests"] != other["requests"]
    assert first["requests"] == again["requests"]


def test_a_sweep_of_streams_has_a_row_for_each_and_a_knee(phaseline: Run, server: TruthServer, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    sweep = ("--sweep-concurrency", "4,1", "--num-prompts", "6", "--repeats", "2", "--export", str(rows))
    done = phaseline(*FAST, "--base-url", server.url, *sweep, "--json")
    assert done.stderr == ""
    record = json.loads(done.stdout)
    assert [(row["streams"], row["completed"], len(row["seconds"])) for row in record["results"]] == [
        (1, 12, 2),
        (4, 12, 2),
    ]
    assert record["knee"]["label"] in ("1 stream", "4 streams") and len(record["runs"]) == 4
    table = list(csv.DictReader(rows.read_text().splitlines()))
    assert len(table) == 24 and {row["pace"] for row in table} == {"1 stream", "4 streams"}
    assert {row["run"] for row in table} == set("0123") and {row["slo_met"] for row in table} == {""}


def test_rates_are_swept_and_searched(phaseline: Run, server: TruthServer) -> None:
    asked = (*FAST, "--base-url", server.url, "--num-prompts", "6", "--burstiness", "inf", "--json")
    swept = json.loads(phaseline(*asked, "--sweep-rate", "400,100").stdout)
    assert [row["requested_rate"] for row in swept["results"]] == pytest.approx([100, 400])
    search = ("--slo-search", "0.9", "--slo-rates", "100:400", "--slo-runs", "30", "--goodput", "ttft:10000")
    found = json.loads(phaseline(*asked, *search).stdout)
    assert found["search"]["rate"] == 400 and "no higher rate was allowed" in found["finding"]
    ramped = json.loads(phaseline(*asked, "--ramp", "50:200:0.1").stdout)
    assert ramped["runs"][0]["request_rate"] == {"start": 50, "end": 200, "duration_s": 0.1}


def test_the_options_of_llama_bench_run_one_request_after_another(phaseline: Run, plain: str) -> None:
    done = phaseline("lab", "load", plain, "-p", "20", "-n", "5", "-r", "3", "--threads", "1")
    tests = [line.split()[0] for line in done.stdout.splitlines() if line.strip().startswith(("pp", "tg"))]
    assert tests == ["pp20", "tg4", "pp20+tg5"] and "of 3" in done.stdout
    deep = json.loads(phaseline("lab", "load", plain, "-pg", "20,5", "-d", "64", "--json").stdout)
    # The shared beginning was read by the warm-up; the cache holds whole pages of it.
    (test,) = {(row["n_prompt"], row["n_depth"]) for row in deep["llama_bench"] if row["n_gen"] == 0}
    assert test == (20, 64) and "all prompts begin with the same 64 tokens" in deep["finding"].lower()
    assert deep["runs"][0]["summary"]["cache"]["verdict"] == "reported" and len(deep["runs"]) == 5


MOONCAKE = [
    {"timestamp": 0, "input_length": 520, "output_length": 2, "hash_ids": [1, 2]},
    {"timestamp": 30, "input_length": 530, "output_length": 3, "hash_ids": [1, 3]},
    {"timestamp": 50, "input_length": 9000, "output_length": 3, "hash_ids": list(range(18))},
]
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.00,12,2\n2024-05-10 00:00:00.05,9,3\n"
SHAREGPT = [
    {"conversations": [{"from": "human", "value": "How is the sea?"}, {"from": "gpt", "value": "Wide, and blue."}]}
]


@pytest.mark.parametrize(
    ("name", "text", "due_ms", "outputs"),
    [
        ("mooncake", "".join(json.dumps(line) + "\n" for line in MOONCAKE), [0, 15], [2, 3]),
        ("azure", AZURE, [0, 25], [2, 3]),
        ("sharegpt", json.dumps(SHAREGPT), [0], [4]),
    ],
)
def test_logs_of_real_traffic_are_replayed(
    phaseline: Run, server: TruthServer, tmp_path: Path, name: str, text: str, due_ms: list[int], outputs: list[int]
) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    options = ("--dataset-name", name, "--dataset-path", str(path), "--speed", "2", "--context", "1000", "--json")
    record = json.loads(phaseline(*FAST, "--base-url", server.url, *options).stdout)
    due = [trace["due_ns"] for trace in record["traces"]]
    assert [(at - due[0]) / 1e6 for at in due] == pytest.approx(due_ms)
    assert [request["max_tokens"] for request in record["requests"]] == outputs
    assert record["summary"]["completed"] == len(due_ms)
    assert ("Passed over: 1 request of the log" in record["finding"]) == (name == "mooncake")


def started(start: Start, server: TruthServer, *options: str) -> Any:
    """A load that has had answers."""
    process = start(*FAST, "--base-url", server.url, *options)
    deadline = time.monotonic() + 30
    while len(server.sent()) < 4:
        assert time.monotonic() < deadline, "the server was not asked"
        time.sleep(0.02)
    return process


def test_a_server_that_dies_midway_leaves_what_it_had_answered(start: Start) -> None:
    with truth_server(SCRIPT) as server:
        process = started(start, server, "--num-prompts", "2000", "--max-concurrency", "2", "--json")
    stdout, _ = process.communicate(timeout=30)
    summary = json.loads(stdout)["summary"]
    assert process.returncode == 0 and summary["completed"] >= 3 and summary["failed"] > 0
    assert summary["completed"] + summary["failed"] == 2000
    assert any("cannot connect to" in note for note in summary["notes"])


def test_a_client_that_does_not_keep_time_says_so(start: Start) -> None:
    pace = ("--num-prompts", "100", "--request-rate", "100", "--burstiness", "inf")
    with truth_server(SCRIPT) as server:
        process = started(start, server, *pace)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGCONT)
        stdout, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "it was too busy to keep time, and that is not the server's doing" in stdout


def test_ctrl_c_keeps_the_requests_that_have_ended(start: Start, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    with truth_server(SCRIPT) as server:
        endless = ("--num-prompts", "100000", "--max-concurrency", "2", "--export", str(rows), "--json")
        process = started(start, server, *endless)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    record = json.loads(stdout)
    assert process.returncode == 130 and record["partial"] and "the record is partial" in stderr
    assert record["summary"]["completed"] == len(rows.read_text().splitlines()) - 1 >= 1


def test_a_server_slower_than_the_rate_is_told_apart_from_one_that_keeps_up(phaseline: Run) -> None:
    slow = Script(engine=Costs(chunk=8, prompt_s=0.002, decode_s=0.0), wire=Wire(counts="token_ids"))  # 16 ms each
    with truth_server(slow) as server:
        pace = ("--num-prompts", "20", "--request-rate", "1000", "--burstiness", "inf", "--random-output-len", "1")
        done = phaseline(*FAST, "--base-url", server.url, *pace)
    assert done.returncode == 0 and "The server was slower than the requests came: it served" in done.stdout


def test_a_server_that_hangs_is_given_up_phase_by_phase(phaseline: Run) -> None:
    hangs = Script(steady(0.001, 0.001, 3), wire=SCRIPT.wire, fault=Fault("hang", after=2))
    with truth_server(hangs) as server:
        options = ("--num-prompts", "3", "--max-concurrency", "3", "--num-warmups", "0", "--between-timeout", "0.1")
        done = phaseline(*FAST, "--base-url", server.url, *options)
    assert done.returncode == 2 and "0 of 3 requests completed" in done.stdout
    assert "timeout: nothing came for 0.1 s after an event" in done.stderr


def test_a_full_disk_costs_the_export_but_not_the_figures(phaseline: Run, server: TruthServer, tmp_path: Path) -> None:
    full = tmp_path / "rows.csv"
    full.symlink_to("/dev/full")
    options = ("--num-prompts", "2", "--max-concurrency", "2", "--export", str(full))
    done = phaseline(*FAST, "--base-url", server.url, *options)
    assert done.returncode == 2 and "2 of 2 requests completed" in done.stdout
    assert done.stderr == f"phaseline: error: cannot write the record to {full}: No space left on device\n"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            ("--sweep-rate", "1", "--sweep-concurrency", "1"),
            "--sweep-concurrency, --sweep-rate and --slo-search exclude",
        ),
        (("--request-rate", "1", "--sweep-rate", "1,2"), "--request-rate and --sweep-rate exclude each other"),
        (("--ramp", "0:0:5"), "rates and duration must be positive"),
        (("--ramp", "1:2"), "'1:2' does not give rates and seconds such as 1:10:30"),
        (("--slo-search", "0.9"), "--slo-search needs --goodput"),
        (("--slo-search", "1.5", "--goodput", "ttft:1"), "0 < target <= 1"),
        (("--dataset-name", "azure"), "--dataset-name azure needs --dataset-path"),
        (("--dataset-path", "f"), "--dataset-path needs --dataset-name sharegpt, mooncake or azure"),
        (("-p", "4", "--random-input-len", "8"), "--random-input-len, -p, -pg mean the same"),
        (("-pg", "512"), "'512' is not a pair of tokens"),
        (("--export", "rows.txt"), "'rows.txt' must end in .jsonl or .csv"),
        (("--request-rate", "0"), "requests at rate 0.0"),
        (("--num-prompts", "0"), "0 requests, 1 paces"),
        (("--save-result", "--result-dir", "/no/such"), "there is no folder /no/such"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    server: TruthServer, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], reason: str
) -> None:
    try:
        status: object = main(["lab", "load", "--no-calibrate", "--base-url", server.url, *options])
    except SystemExit as refused:  # by argparse
        status = refused.code
    told = capsys.readouterr()
    assert (status, told.out) == (2, "")
    assert reason in told.err and told.err.count("\n") == 1
