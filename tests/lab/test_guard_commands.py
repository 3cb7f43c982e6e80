"""What the guard reads from commands: real ones, and everything they may print."""

import asyncio
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from phaseline.errors import FileFormatError, PhaselineError, RequestError
from phaseline.lab.guard_commands import CommandContender, read_numbers
from phaseline.lab.systems.base import Ask

RUN = {"ttft_s": 0.5, "tpot_s": 0.02, "token_ids": [4, 5], "prompt_token_ids": [1, 2, 3]}


def measured(phase: str, tok_s: float, mode: str = "chunk", streams: int = 1) -> dict[str, Any]:
    return {"phase": phase, "mode": mode, "streams": streams, "tok_s": tok_s}


def bench(n_prompt: int, n_gen: int, avg_ts: float) -> dict[str, Any]:
    return {"n_prompt": n_prompt, "n_gen": n_gen, "avg_ts": avg_ts}


@pytest.mark.parametrize(
    ("printed", "prefill", "decode", "answer"),
    [
        (json.dumps(RUN), 0.5, 0.02, (4, 5)),
        (json.dumps(RUN) + "\n\n" + json.dumps(RUN | {"ttft_s": 2.0, "token_ids": [6]}), 1.0, 0.02, (4, 5, 6)),
        (
            json.dumps(
                {"results": [measured("prefill", 100), measured("prefill", 400), measured("prefill", 9, "walk"),
                             measured("decode", 50), measured("decode", 700, streams=8)]}
            ),
            1 / 200, 1 / 50, None,
        ),
        (json.dumps([bench(512, 0, 800.0), bench(0, 128, 100.0), bench(512, 128, 3.0)]), 1 / 800, 1 / 100, None),
        ("\n".join(map(json.dumps, [bench(512, 0, 800.0), bench(0, 128, 100.0)])), 1 / 800, 1 / 100, None),
        (json.dumps({"summary": {"median_ttft_ms": 30.0, "median_tpot_ms": 4.0}}), 0.03, 0.004, None),
    ],
)  # fmt: skip
def test_what_is_understood(printed: str, prefill: float, decode: float, answer: tuple[int, ...] | None) -> None:
    reading = read_numbers(printed)
    assert dict(reading.costs) == pytest.approx({"prefill": prefill, "decode": decode})
    assert reading.answer == answer and reading.trace is None


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("", "nothing about prefill and decode"),
        ("800 tok/s", "does not print JSON, but '800 tok/s'"),
        ("3", "nothing about prefill and decode"),
        ("[]", "nothing about prefill and decode"),
        (json.dumps([bench(512, 0, 800.0)]), "nothing about decode"),
        (json.dumps(RUN | {"tpot_s": None}), "lacks what the guard reads"),
        (json.dumps(RUN | {"tpot_s": -1}), "decode takes -1.0 seconds"),
        (json.dumps(RUN | {"ttft_s": math.inf}), "prefill takes inf seconds"),
        (json.dumps([bench(512, 0, 0.0)]), "lacks what the guard reads: ZeroDivisionError"),
        (json.dumps({"avg_ts": 3}), "lacks what the guard reads: KeyError: 'n_gen'"),
        (json.dumps({"results": [3]}), "lacks what the guard reads"),
        (json.dumps({"summary": {}}), "lacks what the guard reads"),
    ],
)
def test_what_is_not_understood_is_said(printed: str, said: str) -> None:
    with pytest.raises(FileFormatError, match=said):
        read_numbers(printed)


def ask(command: str) -> Any:
    return asyncio.run(CommandContender(command).serve(Ask("", 1)))


def test_a_command_is_run_without_a_shell() -> None:
    printing = "import sys, json; print(json.dumps({'ttft_s': 0.5, 'tpot_s': len(sys.argv)}))"
    reading = ask(f"""{sys.executable} -c "{printing}" '$(exit 3)' ; false""")
    assert dict(reading.costs) == {"prefill": 0.5, "decode": 4}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("/no/such/command", "cannot be run: No such file"),
        (f"""{sys.executable} -c "import sys; sys.exit('it is broken')" """, "exit status 1: it is broken"),
        (f"""{sys.executable} -c "print('oops')" """, "does not print JSON, but 'oops'"),
    ],
)
def test_commands_that_fail(command: str, said: str) -> None:
    with pytest.raises(PhaselineError, match=said):
        ask(command)


@pytest.mark.parametrize("command", ["", "  ", "echo 'open"])
def test_what_is_no_command(command: str) -> None:
    with pytest.raises(RequestError):
        CommandContender(command)


def test_a_command_that_is_given_up_ends(tmp_path: Path) -> None:
    mark = tmp_path / "pid"

    async def give_up() -> None:
        serving = asyncio.create_task(CommandContender(f"sh -c 'echo $$ > {mark}; exec sleep 1000'").serve(Ask("", 1)))
        while not (mark.exists() and mark.read_text().endswith("\n")):
            await asyncio.sleep(0.01)
        serving.cancel()
        await serving

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(give_up())
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)
