"""`phaseline chat`: turns, the reused prefix, commands, Ctrl-C."""

import json
import os
import pty
import select
import signal
import subprocess
from pathlib import Path

import pytest

from support.command import COMMAND, ENVIRONMENT, Run, Start

LONG = "the north wind and the sun were disputing which was the stronger of the two when a traveller came along"
SHORT_ANSWERS = ("--max-tokens", "6", "--ignore-eos")


def test_the_second_turn_finds_the_first_in_the_cache(phaseline: Run, tiny: str) -> None:
    done = phaseline("chat", tiny, *SHORT_ANSWERS, "--json", input=f"{LONG}\n\nand then?\n")
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert [m["role"] for m in found["messages"]] == ["user", "assistant", "user", "assistant"]
    first, second = found["turns"]
    assert first["cached_tokens"] == 0 < second["cached_tokens"] < len(second["prompt_token_ids"])
    assert [m["content"] for m in found["messages"]] == [LONG, first["text"], "and then?", second["text"]]
    computed = len(second["prompt_token_ids"]) - second["cached_tokens"]
    assert f"({second['cached_tokens']} cached)" in done.stderr
    assert f"prefill {computed / second['ttft_s']:.4g} tok/s" in done.stderr


def test_text_on_standard_output_figures_on_standard_error(phaseline: Run, tiny: str, tmp_path: Path) -> None:
    out = tmp_path / "chat.json"
    done = phaseline("chat", tiny, *SHORT_ANSWERS, "--out", str(out), input="one\ntwo\n/stats\n")
    turns = json.loads(out.read_text())["turns"]
    assert done.returncode == 0
    assert done.stdout == "".join(turn["text"] + "\n" for turn in turns)
    assert done.stderr.count("TTFT") == 2 and "2 answers of 12 tokens" in done.stderr


def test_commands(phaseline: Run, tiny: str) -> None:
    script = "/help\n/system be brief\none\n/reset\none\n/system\n/reset\n /quit\n/quit\nnever read\n"
    done = phaseline("chat", tiny, *SHORT_ANSWERS, "--json", input=script)
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert "/reset" in done.stderr
    assert [m["content"] for m in found["messages"] if m["role"] != "assistant"] == ["/quit"]
    first, again, last = (turn["prompt_token_ids"] for turn in found["turns"])
    assert first == again  # /reset forgot the turn and kept the system message
    assert len(last) < len(first)


def test_only_a_known_command_is_one(phaseline: Run, tiny: str) -> None:
    done = phaseline("chat", tiny, *SHORT_ANSWERS, "--json", input="/etc/hosts\n/resetting\n/quit now\nnever read\n")
    messages = json.loads(done.stdout)["messages"]
    assert [m["content"] for m in messages if m["role"] == "user"] == ["/etc/hosts", "/resetting"]


def test_a_conversation_that_no_longer_fits_goes_on(phaseline: Run, tiny: str) -> None:
    script = f"hello\n{LONG}\n/reset\nhello\n"
    done = phaseline("chat", tiny, *SHORT_ANSWERS, "--context", "48", "--json", input=script)
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert "not kept" in done.stderr and "/reset" in done.stderr
    assert [m["role"] for m in found["messages"]] == ["user", "assistant"]
    assert found["turns"][0]["token_ids"] == found["turns"][1]["token_ids"]


def test_a_message_that_is_not_text_is_refused_and_the_next_answered(phaseline: Run, tiny: str) -> None:
    done = phaseline("chat", tiny, *SHORT_ANSWERS, "--json", input=b"\xff\xfe\nhello\n")
    assert done.returncode == 0 and "not valid Unicode" in done.stderr
    assert [m["role"] for m in json.loads(done.stdout)["messages"]] == ["user", "assistant"]


@pytest.mark.timeout(30)
def test_ctrl_c_stops_the_answer_not_the_program(start: Start, tiny: str, tmp_path: Path) -> None:
    out = tmp_path / "chat.json"
    process = start("chat", tiny, "--max-tokens", "100000", "--ignore-eos", "--out", str(out))
    assert process.stdin and process.stdout and process.stderr
    process.stdin.write(f"{LONG}\n")
    process.stdin.flush()
    process.stdout.read(1)  # the answer is on its way
    process.send_signal(signal.SIGINT)
    assert "(abort)" in process.stderr.readline()
    process.stdin.write("/stats\n/quit\n")
    _, said = process.communicate(timeout=20)
    found = json.loads(out.read_text())
    assert process.returncode == 0 and "1 answer of" in said
    assert found["turns"][0]["finish_reason"] == "abort"
    assert found["messages"][1] == {"role": "assistant", "content": found["turns"][0]["text"]}
    assert 1 <= len(found["turns"][0]["token_ids"]) < 100000


@pytest.mark.timeout(30)
def test_ctrl_c_between_answers_leaves_the_second_time(start: Start, tiny: str) -> None:
    process = start("chat", tiny, *SHORT_ANSWERS)
    assert process.stdin and process.stderr
    process.stdin.write("hello\n")
    process.stdin.flush()
    assert "(length)" in process.stderr.readline()
    for _ in range(2):  # what is said in between makes the second the first again
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == "press Ctrl-C again or Ctrl-D to leave\n"
        process.stdin.write("hello\n")
        process.stdin.flush()
        assert "(length)" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 0
    assert process.stderr.read() == ""


def test_at_a_terminal(tiny: str) -> None:
    ours, theirs = pty.openpty()
    terminal = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    process = subprocess.Popen([*COMMAND, "chat", tiny, *SHORT_ANSWERS], env=ENVIRONMENT, **terminal)
    os.close(theirs)
    try:
        seen = _read_until(ours, b"> ")
        os.write(ours, b"hello\r")
        seen += _read_until(ours, b"> ", after=b"TTFT")
        os.write(ours, b"\x04")
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"/help" in seen and b"Traceback" not in seen


def _read_until(terminal: int, mark: bytes, after: bytes = b"") -> bytes:
    """What the terminal shows up to `mark`, where that comes after `after`."""
    seen = b""
    while after not in seen or mark not in seen[seen.index(after) + len(after) :]:
        assert select.select([terminal], [], [], 20)[0], seen
        seen += os.read(terminal, 4096)
    return seen
