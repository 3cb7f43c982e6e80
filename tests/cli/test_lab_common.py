"""What every experiment's command does: the system it opens, what it prints and saves, and how it can be stopped."""

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phaseline.cli.main import main
from phaseline.lab.systems.truth import TruthServer, truth_server
from phaseline.lab.systems.truth_engine import Costs
from phaseline.lab.systems.truth_script import Script, Wire
from support.command import Run, Start

SCRIPT = Script(engine=Costs(chunk=64, prompt_s=1e-4, decode_s=1e-3), wire=Wire(counts="token_ids"))
GRID = ("--prompts", "4,32", "--outputs", "3", "--repeats", "2")
ENDLESS = ("--prompts", "4", "--outputs", "3", "--repeats", "100000")
FAST = ("lab", "endtoend", "--no-calibrate")


@pytest.fixture(scope="module")
def server() -> Iterator[TruthServer]:
    with truth_server(SCRIPT) as running:
        yield running


@pytest.fixture
def nobody() -> str:
    """A URL where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def record_of(stdout: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(stdout)
    return record


def test_a_server_is_measured_and_told_in_words_a_table_and_a_record(
    phaseline: Run, server: TruthServer, tmp_path: Path
) -> None:
    out = tmp_path / "record.json"
    done = phaseline(*FAST, *GRID, "--base-url", server.url, "--out", str(out), "--api-key", "top secret")
    record = record_of(out.read_text())
    assert (done.returncode, done.stderr) == (0, "")
    head, finding, *table = done.stdout.splitlines()
    assert head.startswith(f"openai {server.url}, truth; from ") and finding == record["finding"]
    assert [line.split()[:2] for line in table[-3:-1]] == [["4", "3"], ["32", "3"]]

    assert (record["experiment"], record["partial"], record["calibration"]) == ("endtoend", False, None)
    assert record["system"]["base_url"] == server.url and record["model"] == {"name": "truth"}
    assert record["machine"]["client_only"] is True and record["build"] == {}
    assert {"version", "date", "command", "python", "platform"} <= record.keys()
    assert "--api-key" in record["command"] and "top secret" not in out.read_text()


def test_our_engine_is_described_by_its_model_and_its_build(phaseline: Run, plain: str) -> None:
    done = phaseline(*FAST, *GRID, plain, "--json", "--threads", "1", "--chunk", "16", "--max-running", "2")
    record = record_of(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert record["model"]["name"] == plain and record["model"]["arch"] == "llama"
    assert {"threads": 1, "chunk": 16, "max_running": 2}.items() <= record["build"].items()
    assert record["system"]["name"] == "phaseline" and record["machine"]["client_only"] is False
    assert [row["prompt_tokens"] for row in record["results"]] == [4, 32]


def test_a_scripted_system_in_this_process(phaseline: Run, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(SCRIPT.to_json())
    done = phaseline(*FAST, *GRID, "--system", "truth", "--script", str(script), "--json")
    assert record_of(done.stdout)["system"]["kind"] == "truth"


def test_llamacpp_in_this_process(phaseline: Run, plain: str) -> None:
    pytest.importorskip("xllamacpp")
    options = ("--system", "llamacpp", "--threads", "1", "--context", "128", "--max-running", "2", "--json")
    record = record_of(phaseline(*FAST, *GRID, plain, *options).stdout)
    assert {"threads": 1, "context": 128, "streams": 2, "ubatch": 512}.items() <= record["system"].items()
    assert [row["prompt_tokens"] for row in record["results"]] == [4, 32]


def test_the_error_of_the_clock_is_measured_before_a_server_is(phaseline: Run, server: TruthServer) -> None:
    command = ("lab", "endtoend", *GRID, "--base-url", server.url)
    assert "this client's clock, held against a scripted server: median error " in phaseline(*command).stdout


def test_a_server_that_is_not_there_is_refused_before_anything_is_measured(
    phaseline: Run, nobody: str, tmp_path: Path
) -> None:
    out = tmp_path / "record.json"
    done = phaseline(*FAST, "--base-url", nobody, "--out", str(out))
    assert (done.returncode, done.stdout) == (2, "") and not out.exists()
    assert done.stderr.startswith(f"phaseline: error: cannot connect to {nobody}") and done.stderr.count("\n") == 1


def test_a_record_without_a_result_is_kept_and_refused(phaseline: Run, nobody: str, tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    done = phaseline(*FAST, *GRID, "--base-url", nobody, "--model", "named", "--out", str(out))
    record = record_of(out.read_text())
    assert done.returncode == 2 and record["finding"] in done.stdout
    assert done.stderr == f"phaseline: error: {record['error']}\n" and "cannot connect" in record["error"]


def test_a_full_disk_costs_the_file_but_not_the_figures(phaseline: Run, server: TruthServer) -> None:
    command = (*FAST, *GRID, "--base-url", server.url, "--out", "/dev/full")
    refused = "phaseline: error: cannot write the record to /dev/full: No space left on device\n"
    told = phaseline(*command)
    assert (told.returncode, told.stderr) == (2, refused) and "prefill" in told.stdout
    printed = phaseline(*command, "--json")
    assert (printed.returncode, printed.stderr) == (2, refused)
    assert record_of(printed.stdout)["experiment"] == "endtoend"


def test_ctrl_c_keeps_what_was_measured_and_says_that_it_is_partial(start: Start, tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    with truth_server(SCRIPT) as server:
        process = start(*FAST, *ENDLESS, "--base-url", server.url, "--out", str(out))
        wait_for_requests(server, 4)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    record = record_of(out.read_text())
    assert process.returncode == 130 and record["partial"] is True
    assert record["results"][0]["samples"] >= 2 and record["finding"] in stdout
    assert "PARTIAL" in stdout and "the record is partial" in stderr and "Traceback" not in stderr


def test_ctrl_c_within_a_step_of_our_engine(start: Start, tiny: str) -> None:
    process = start(
        *FAST, tiny, "--prompts", "2000", "--outputs", "3", "--repeats", "100000", "--chunk", "64", "--json"
    )
    time.sleep(1.5)  # by then the engine runs; if not, there is still nothing but a partial end
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in stderr
    assert not stdout or record_of(stdout)["partial"] is True


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            (),
            "no MODEL: give a name that was pulled, a .gguf file, or a Hugging Face folder, or a running server by",
        ),
        (("one", "--model", "other"), "give the model once: it is one and --model other"),
        (("--system", "openai"), "--system openai needs --base-url"),
        (("--system", "truth"), "--system truth needs --script"),
        (("--system", "truth", "--script", "/no/such/file"), "cannot read the script /no/such/file"),
        (("--system", "truth", "--base-url", "http://a"), "--base-url is of a server, but --system truth runs in"),
        (("m.gguf", "--script", "s.json"), "--script is of --system truth, not of phaseline"),
        (("--system", "llamacpp", "m", "--base-url", "http://a"), "a running llama-server serves the model it has"),
        (("--base-url", "http://a", "--insecure", "--ca-file", "f"), "--insecure and --ca-file exclude each other"),
        (("--base-url", "ftp://a"), "not the base URL of a server"),
        (("m", "--out", "/no/such/folder/file"), "cannot write the record to /no/such/folder/file"),
        (("m", "--goodput", "ttft:500", "speed:3"), "goodput: 'speed:3' is not NAME:MILLISECONDS"),
        (("m", "--prompts", "16,0"), "'16,0' is not a list of whole numbers above 0"),
        (("m", "--repeats", "0", "--system", "truth", "--script", "SCRIPT"), "0 repeats: at least one of each"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: tuple[str, ...], reason: str
) -> None:
    script = tmp_path / "script.json"
    script.write_text(SCRIPT.to_json())
    try:
        status: object = main([*FAST, *(str(script) if option == "SCRIPT" else option for option in options)])
    except SystemExit as refused:  # by argparse
        status = refused.code
    told = capsys.readouterr()
    assert (status, told.out) == (2, "")
    assert reason in told.err and told.err.count("\n") == 1


def test_the_help_lists_every_experiment(phaseline: Run) -> None:
    names = ("prefill", "decode", "batch", "endtoend", "interference", "chunk", "compare", "load", "regime")
    listed = phaseline("lab", "--help").stdout.split()
    assert [name for name in names if name not in listed] == []


def wait_for_requests(server: TruthServer, count: int) -> None:
    deadline = time.monotonic() + 30
    while len(server.sent()) < count:
        assert time.monotonic() < deadline, "the server was not asked"
        time.sleep(0.02)
