"""The entry: version, help, refusals, and what is not imported for them."""

import os
import re
import subprocess
import sys
from argparse import ArgumentTypeError
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline import __version__
from phaseline.cli import options
from phaseline.cli.main import main
from phaseline.engine import load
from phaseline.files import recode
from support.command import COMMAND, Run


def test_version_names_the_instruction_set_in_use(phaseline: Run) -> None:
    done = phaseline("--version")
    match = re.fullmatch(r"phaseline (\S+) \((\w+); runs here: ([\w, ]+)\)\n", done.stdout)
    assert (done.returncode, done.stderr) == (0, "") and match
    assert match[1] == __version__
    assert match[2] == match[3].split(", ")[-1] and "portable" in match[3]


@pytest.mark.parametrize("command", ["", "pull", "run", "chat", "measure", "explain"])
def test_every_command_has_help(phaseline: Run, command: str) -> None:
    done = phaseline(*command.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: phaseline {command}".rstrip())


def test_help_waits_for_nothing_heavy() -> None:
    script = (
        "import sys\nfrom phaseline.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'rich', 'jinja2', 'tokenizers', 'phaseline._native'} & sys.modules.keys()\n"
        "sys.exit(' '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


PRESS = """
import signal, sys

class Press:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Press())
from phaseline.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("module", ["argparse", "phaseline.cli.run", "numpy"])
def test_interrupted_while_the_program_is_still_being_imported(plain: str, module: str) -> None:
    command = [sys.executable, "-c", PRESS, module, "run", plain, "text"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("command", [("run", "PLAIN", "-"), ("chat", "TINY")])
def test_a_closed_input_is_told_in_one_line(places: Mapping[str, str], command: tuple[str, ...]) -> None:
    done = _redirected("<&-", *(places.get(arg, arg) for arg in command))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "standard input is closed" in done.stderr


@pytest.mark.parametrize("command", [("--help",), ("run", "PLAIN", "text", "--json"), ("explain", "PLAIN")])
def test_a_closed_output_is_told_in_one_line(places: Mapping[str, str], command: tuple[str, ...]) -> None:
    done = _redirected(">&-", *(places.get(arg, arg) for arg in command))
    assert done.returncode == 2
    assert done.stderr == "phaseline: error: standard output is closed\n"


def test_a_closed_error_stream_hides_only_what_would_go_there(places: Mapping[str, str]) -> None:
    assert _redirected("2>&-", "run", places["PLAIN"], "text", "--max-tokens", "-1").stdout == ""
    assert _redirected("2>&-", "run", places["PLAIN"], "text", "--max-tokens", "2").returncode == 0


def _redirected(redirection: str, *args: str) -> "subprocess.CompletedProcess[str]":
    shell = ["sh", "-c", f'"$@" {redirection}', "sh", *COMMAND, *args]
    return subprocess.run(shell, capture_output=True, encoding="utf-8", timeout=60, stdin=subprocess.DEVNULL)


REFUSED = [
    ((), "COMMAND"),
    (("nonsense",), "'nonsense'"),
    (("run",), "MODEL"),
    (("run", "TINY"), "one prompt"),
    (("run", "TINY", "text", "--ids", "1"), "one prompt"),
    (("run", "TINY", "text", "--bogus"), "--bogus"),
    (("run", "TINY", "text", "--max-tok", "3"), "--max-tok"),
    (("run", "TINY", "text", "--mode", "sideways"), "'sideways'"),
    (("run", "TINY", "text", "--numerics", "vague"), "'vague'"),
    (("run", "TINY", "text", "--memory", "4GB2"), "'4GB2'"),
    (("run", "TINY", "text", "--threads", "two"), "'two'"),
    (("run", "TINY", "text", "--threads", "0"), "error: --threads 0: "),
    (("run", "TINY", "text", "--chunk", "0"), "error: --chunk 0: "),
    (("run", "TINY", "text", "--level", "sse9"), "'sse9'"),
    (("run", "TINY", "text", "--context", "0"), "error: --context 0: "),
    (("run", "TINY", "text", "--memory", "1MiB"), "does not fit"),
    (("run", "TINY", "text", "--max-tokens", "-1"), "error: --max-tokens -1: "),
    (("run", "TINY", "text", "--min-tokens", "9", "--max-tokens", "8"), "error: --min-tokens 9: "),
    (("run", "TINY", "text", "--temperature", "nan"), "error: --temperature nan: "),
    (("run", "TINY", "text", "--temperature", "inf"), "error: --temperature inf: "),
    (("run", "TINY", "text", "--top-p", "0"), "error: --top-p 0: "),
    (("run", "TINY", "text", "--stop", ""), "error: stop = ['']: "),
    (("run", "TINY", "text", "--seed", "-1"), "error: --seed -1: "),
    (("run", "TINY", "text", "--out", "/nowhere/at/all.json"), "/nowhere/at"),
    (("run", "TINY", "--ids", "1,two"), "'1,two'"),
    (("run", "TINY", "--ids", "5,320"), "prompt[1] = 320"),
    (("run", "TINY", "--ids", ""), "prompt = []"),
    (("run", "TINY", ""), "empty"),
    (("run", "TINY", "a much longer text", "--context", "8"), "the context holds 8 tokens"),
    (("run", "TINY", "\udcff"), "the prompt is not UTF-8"),
    (("run", "TINY", "--ids", "-1,2"), "prompt[0] = -1"),
    (("run", "TINY", "text", "--raw", "more"), "more"),
    (("run", "TINY", "--max-tokens", "--raw", "text"), "--max-tokens"),
    (("run", "TINY", "text", "--out", ""), "folder"),
    (("run", "TINY", "text", "--out", "/"), "folder"),
    (("measure", "missing.gguf", "--out", "/proc/record.json"), "/proc/record.json"),
    (("run", "missing.gguf", "text"), "missing.gguf"),
    (("run", "no such\nname", "text"), "no such"),
    (("run", "TRUNCATED", "text"), "cut short.gguf"),
    (("chat", "PLAIN"), "no chat template"),
    (("explain", "TINY", "--context", "131072"), "error: --context 131072: "),
    (("explain", "TINY", "--batch", "0"), "error: --batch 0: "),
    (("explain", "TINY", "--seed", "-1"), "error: --seed -1: "),
    (("explain", "TINY", "--threads", "-3"), "error: --threads -3: "),
    (("measure", "TINY", "--seed", "-1"), "error: --seed -1: "),
    (("measure", "TINY", "--threads", "-3"), "error: --threads -3: "),
    (("explain", "TRUNCATED"), "cut short.gguf"),
    (("measure", "TINY", "--numerics", "reference"), "reference"),
    (("pull", "unheard-of"), "'unheard-of'"),
    (("serve", "TINY", "--max-queue", "0"), "error: --max-queue 0: "),
    (("serve", "TINY", "--request-timeout=0"), "error: --request-timeout 0: "),
    (("serve", "TINY", "--allowed-host", "http://x"), "error: --allowed-host http://x: "),
]


@pytest.fixture(scope="module")
def places(tiny: str, plain: str, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The files that the names in capitals stand for."""
    truncated = tmp_path_factory.mktemp("models") / "cut\nshort.gguf"
    truncated.write_bytes(Path(tiny).read_bytes()[:5000])
    return {"TINY": tiny, "PLAIN": plain, "TRUNCATED": str(truncated)}


@pytest.mark.parametrize(("args", "said"), REFUSED, ids=[" ".join(args) for args, _ in REFUSED])
def test_what_is_refused_is_told_in_one_line(
    places: Mapping[str, str], capsys: pytest.CaptureFixture[str], args: tuple[str, ...], said: str
) -> None:
    try:
        status: object = main([places.get(arg, arg) for arg in args])
    except SystemExit as end:
        status = end.code
    output = capsys.readouterr()
    assert (status, output.out) == (2, "")
    assert output.err.startswith("phaseline") and output.err.count("\n") == 1 and output.err.endswith("\n")
    assert said in output.err


@pytest.mark.parametrize("args", [(), ("run", "TINY", "text", "--threads", "0"), ("run", "TRUNCATED", "text")])
def test_a_refusal_is_the_status_of_the_process(
    phaseline: Run, places: Mapping[str, str], args: tuple[str, ...]
) -> None:
    done = phaseline(*(places.get(arg, arg) for arg in args))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("args", [("--version",), ("run", "PLAIN", "text", "--max-tokens", "2"), ("explain", "PLAIN")])
def test_a_full_disk_is_told_in_one_line(phaseline: Run, places: Mapping[str, str], args: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = phaseline(*(places.get(arg, arg) for arg in args), stdout=full)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "No space left" in done.stderr


@pytest.mark.parametrize(
    "args",
    [("--help",), ("--version",), ("run", "PLAIN", "text", "--max-tokens", "2", "--json"), ("explain", "PLAIN")],
)
def test_a_reader_that_has_gone_is_no_error(phaseline: Run, places: Mapping[str, str], args: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as gone:
        done = phaseline(*(places.get(arg, arg) for arg in args), stdout=gone)
    assert (done.returncode, done.stderr) == (141, "")


def test_choices_are_those_of_load() -> None:
    assert (options.MODES, options.NUMERICS) == (load.MODES, load.NUMERICS)
    assert options.WEIGHTS == recode.WEIGHT_TYPES


@given(
    st.integers(0, 10**6),
    st.sampled_from([("", 1), ("B", 1), ("kb", 1000), ("KiB", 1024), ("k", 1024), ("G", 1 << 30)]),
)
def test_a_size_is_a_number_of_units(count: int, unit: tuple[str, int]) -> None:
    assert options.size(f"{count}{unit[0]}") == count * unit[1]


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e3", "4  G", "nan", "4XB", "1.", "4²"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="not a size"):
        options.size(text)
