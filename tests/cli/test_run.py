"""`phaseline run`: what goes where, the record, interruption."""

import json
import signal
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from select import PIPE_BUF
from typing import Any

import pytest

from support.command import COMMAND, ENVIRONMENT, Run, Start

KEYS = {
    *("text", "token_ids", "prompt_token_ids", "finish_reason"),
    *("ttft_s", "tpot_s", "worst_gap_s", "token_times_s", "cached_tokens"),
    *("model", "machine", "build", "version"),
}
PROMPT = "the rain in the north"


@pytest.fixture
def record(phaseline: Run, tiny: str) -> Any:
    """The record of one `run`, which must be all there is on standard output."""

    def make(*args: str, input: str = "") -> dict[str, Any]:
        done = phaseline("run", tiny, *args, "--json", input=input)
        assert (done.returncode, done.stderr) == (0, "")
        found = json.loads(done.stdout)
        assert found.keys() >= KEYS
        return dict(found)

    return make


def test_text_on_standard_output_and_one_line_of_figures(phaseline: Run, tiny: str, record: Any) -> None:
    options = (PROMPT, "--max-tokens", "12", "--ignore-eos")
    done = phaseline("run", tiny, *options)
    assert done.returncode == 0
    assert done.stdout == record(*options)["text"] + "\n"
    assert done.stderr.count("\n") == 1
    for part in ("prompt 3", "output 12 (length)", "TTFT", "TPOT", "worst gap", "prefill", "decode", "tok/s"):
        assert part in done.stderr


def test_the_record_agrees_with_itself(record: Any) -> None:
    found = record(PROMPT, "--max-tokens", "12", "--ignore-eos")
    times = found["token_times_s"]
    assert len(found["token_ids"]) == len(times) == 12 and found["finish_reason"] == "length"
    assert times == sorted(times) and found["ttft_s"] == times[0] > 0
    assert found["tpot_s"] == pytest.approx((times[-1] - times[0]) / 11)
    assert found["worst_gap_s"] == pytest.approx(max(b - a for a, b in pairwise(times)))
    assert found["model"]["arch"] == "llama"


def test_a_prompt_as_token_ids(record: Any) -> None:
    first = record(PROMPT, "--max-tokens", "8")
    again = record("--ids", ",".join(map(str, first["prompt_token_ids"])), "--max-tokens", "8")
    assert (again["prompt_token_ids"], again["token_ids"]) == (first["prompt_token_ids"], first["token_ids"])


def test_the_template_is_applied_unless_raw(record: Any) -> None:
    raw = record(PROMPT, "--raw", "--max-tokens", "1")["prompt_token_ids"]
    framed = record(PROMPT, "--max-tokens", "1")["prompt_token_ids"]
    spelt_out = record(f"user: {PROMPT}\nassistant: ", "--raw", "--max-tokens", "1")["prompt_token_ids"]
    assert framed == spelt_out != raw


@pytest.mark.parametrize(
    "words",
    [
        ("TINY", "--raw", PROMPT),
        ("--raw", "TINY", PROMPT),
        ("--raw", "TINY", "--max-tokens", "0", PROMPT),
        ("TINY", "--raw", "-"),
        ("TINY", "--raw", "--", PROMPT),
        ("--raw", "--", "TINY", PROMPT),
    ],
)
def test_options_may_stand_anywhere(phaseline: Run, record: Any, tiny: str, words: tuple[str, ...]) -> None:
    placed = (tiny if word == "TINY" else word for word in words)
    done = phaseline("run", "--json", "--max-tokens", "0", *placed, input=PROMPT)
    assert (done.returncode, done.stderr) == (0, "")
    given = record(PROMPT, "--raw", "--max-tokens", "0")["prompt_token_ids"]
    assert json.loads(done.stdout)["prompt_token_ids"] == given


def test_behind_two_dashes_a_prompt_may_look_like_an_option(phaseline: Run, record: Any, tiny: str) -> None:
    given = record("-", "--max-tokens", "0", input="--raw")["prompt_token_ids"]
    done = phaseline("run", tiny, "--max-tokens", "0", "--json", "--", "--raw")
    assert json.loads(done.stdout)["prompt_token_ids"] == given
    assert record("--max-tokens", "0", "-1")["prompt_token_ids"] != given  # a negative number is no option


def test_what_the_encoding_lacks_is_a_question_mark(plain: str) -> None:
    environment = ENVIRONMENT | {"PYTHONIOENCODING": "ascii"}
    command = [*COMMAND, "run", plain, PROMPT, "--max-tokens", "40", "--ignore-eos"]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="ascii", timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert "?" in done.stdout


def test_a_file_without_template_gets_the_text_as_it_is(phaseline: Run, plain: str) -> None:
    prompts = [
        json.loads(phaseline("run", plain, PROMPT, "--max-tokens", "0", "--json", *raw).stdout)["prompt_token_ids"]
        for raw in ((), ("--raw",))
    ]
    assert prompts[0] == prompts[1]


def test_a_prompt_from_standard_input(record: Any) -> None:
    options = ("--max-tokens", "0")
    given = record(PROMPT, *options)["prompt_token_ids"]
    assert record("-", *options, input=PROMPT + "\n")["prompt_token_ids"] == given
    as_it_is = record("-", "--raw", *options, input=PROMPT + "\n")["prompt_token_ids"]
    assert as_it_is == record(PROMPT + "\n", "--raw", *options)["prompt_token_ids"]


def test_no_token_asked_for_is_nothing_measured(record: Any) -> None:
    found = record(PROMPT, "--max-tokens", "0")
    assert (found["text"], found["token_ids"], found["finish_reason"]) == ("", [], "length")
    assert (found["ttft_s"], found["tpot_s"], found["worst_gap_s"]) == (None, None, None)


def test_stop_strings_end_the_text(record: Any) -> None:
    options = (PROMPT, "--max-tokens", "40", "--ignore-eos")
    whole = record(*options)["text"]
    letters = [letter for letter in dict.fromkeys(whole) if letter.isascii() and letter.isalpha()]
    first, later = letters[0], letters[-1]
    found = record(*options, "--stop", later, "--stop", first)
    assert (found["text"], found["finish_reason"]) == (whole[: whole.index(first)], "stop")


def test_a_seed_repeats_what_is_drawn(record: Any) -> None:
    options = (PROMPT, "--max-tokens", "16", "--temperature", "1.5", "--top-k", "50", "--top-p", "0.95", "--seed")
    first, again, other = (record(*options, seed)["token_ids"] for seed in ("7", "7", "8"))
    assert first == again != other


def test_an_answer_in_json(phaseline: Run, record: Any, tiny: str, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["é x", 12]}', encoding="utf-8")
    found = record(PROMPT, "--json-schema", str(schema))
    assert json.loads(found["text"]) in ("é x", 12) and found["finish_reason"] == "stop"
    assert record(PROMPT, "--json-object", "--max-tokens", "20")["text"].startswith("{")
    schema.write_text('{"type": "strange"}')
    for path, reason in ((schema, "strange"), (tmp_path, "cannot be read"), (tmp_path / "none", "cannot be read")):
        done = phaseline("run", tiny, PROMPT, "--json-schema", str(path))
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1) and reason in done.stderr


def test_engine_options_arrive(record: Any) -> None:
    build = record(PROMPT, "--threads", "1", "--level", "portable", "--mode", "eager", "--max-tokens", "1")["build"]
    assert (build["threads"], build["level"], build["mode"]) == (1, "portable", "eager")
    assert record(PROMPT, "--numerics", "reference", "--max-tokens", "1")["build"] == {"executor": "reference"}


def test_a_record_goes_into_a_file_as_well(phaseline: Run, tiny: str, tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    done = phaseline("run", tiny, PROMPT, "--max-tokens", "5", "--out", str(out))
    written = json.loads(out.read_text())
    assert done.stdout == written["text"] + "\n" and len(written["token_ids"]) == 5
    both = phaseline("run", tiny, PROMPT, "--max-tokens", "5", "--out", str(out), "--json")
    assert json.loads(both.stdout) == json.loads(out.read_text())


def test_interrupted_while_streaming(start: Start, tiny: str) -> None:
    process = start("run", tiny, PROMPT, "--max-tokens", "100000", "--ignore-eos")
    assert process.stdout and process.stderr
    text = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    text += process.stdout.read()
    assert (process.wait(timeout=20), process.stderr.read()) == (130, "")
    assert len(text.encode()) < PIPE_BUF  # each piece came as it was made, not a buffer of them


def test_interrupted_with_json_nothing_is_printed(start: Start, tiny: str, tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    process = start("run", tiny, PROMPT, "--max-tokens", "100000", "--ignore-eos", "--json", "--out", str(out))
    tasks = Path(f"/proc/{process.pid}/task")
    while len(list(tasks.iterdir())) == 1:  # the program has not reached its own code before it has threads
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20) == ("", "")
    assert process.returncode == 130 and not out.exists()


def test_a_reader_that_goes_away_is_no_error(start: Start, tiny: str) -> None:
    process = start("run", tiny, PROMPT, "--max-tokens", "100000", "--ignore-eos")
    assert process.stdout and process.stderr
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=20) == 141
    assert process.stderr.read() == ""


def test_the_real_model_answers(phaseline: Run, smollm2_path: Path) -> None:
    done = phaseline("run", str(smollm2_path), "What is the capital of France?", "--max-tokens", "12", "--json")
    found = json.loads(done.stdout)
    assert "Paris" in found["text"] and found["finish_reason"] == "stop"
