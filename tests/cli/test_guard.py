"""`phaseline guard`: verdicts as exit statuses, the file of floors, refusals."""

import json
import signal
import tomllib
from pathlib import Path
from typing import Any

import pytest

from phaseline.cli.main import main
from phaseline.lab.systems.truth import truth_server
from phaseline.lab.systems.truth_script import Script, Wire, steady
from support.command import Run, Start

QUICK = ("--least", "10", "--most", "10", "--asks", "1", "--settle", "0")


def printing(folder: Path, name: str, ttft: float = 1.0, tpot: float = 0.1, tokens: list[int] | None = None) -> str:
    """A command whose figures are always the same, as `phaseline run --json` prints them."""
    record: dict[str, Any] = {"ttft_s": ttft, "tpot_s": tpot}
    path = folder / f"{name}.json"
    path.write_text(json.dumps(record if tokens == [] else record | {"token_ids": tokens or [1, 2, 3]}))
    return f"cmd:cat {path}"


def test_commands_pass_or_are_refused(phaseline: Run, tmp_path: Path) -> None:
    base = printing(tmp_path, "base")
    done = phaseline("guard", "check", base, printing(tmp_path, "same"), *QUICK)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("passed. prefill is 0.0% slower than the base") and "10 replicates" in done.stdout
    done = phaseline("guard", "check", base, printing(tmp_path, "slow", ttft=0.5, tpot=0.102), *QUICK)
    assert done.returncode == 1 and done.stdout.startswith("refused. ")
    (line,) = (line.split() for line in done.stdout.splitlines() if line.split()[:2] == ["decode", "base"])
    assert line == ["decode", "base", "102", "100", "2.0", "2.0", "2.0", "1.0", "slower"]
    done = phaseline("guard", "check", base, printing(tmp_path, "other", tokens=[1, 2, 4]), *QUICK)
    assert done.returncode == 3 and "the answers differ" in done.stdout
    silent = printing(tmp_path, "silent", tokens=[])
    done = phaseline("guard", "check", silent, silent, *QUICK)
    assert done.returncode == 2 and "--no-answers" in done.stderr
    assert phaseline("guard", "check", silent, silent, *QUICK, "--no-answers").returncode == 0
    done = phaseline("guard", "check", base, base, "--least", "3", "--most", "3", "--settle", "0", "--json")
    record = json.loads(done.stdout)
    assert done.returncode == record["status"] == 4 and "too few replicates to say more" in record["finding"]


def test_what_is_recorded_holds_for_later_checks(phaseline: Run, tmp_path: Path) -> None:
    floors, out = tmp_path / "floors.toml", tmp_path / "record.json"
    first = printing(tmp_path, "first", ttft=0.9)
    done = phaseline("guard", "record", first, *QUICK, "--floors", str(floors), "--out", str(out))
    assert (done.returncode, done.stderr) == (0, "")
    assert "floors prefill 1.00%, decode 1.00%; anchor: cmd:cat" in done.stdout
    data = tomllib.loads(floors.read_text())
    assert data["floor_percent"] == {"prefill": 1.0, "decode": 1.0} and data["noise_percent"]["decode"] == 0
    assert data["anchor"]["target"] == first and data["anchor"]["prefill_ms"] == 900
    assert json.loads(out.read_text())["noise"] == {"prefill": 0, "decode": 0}

    base, head = printing(tmp_path, "base"), printing(tmp_path, "head", ttft=1.005)
    checked = ("guard", "check", base, head, *QUICK)
    assert phaseline(*checked).returncode == 0
    done = phaseline(*checked, "--floors", str(floors))
    assert done.returncode == 1 and "11.7% slower than the anchor" in done.stdout
    done = phaseline(*checked, "--anchor", base, "--floors", str(floors), "--json")
    record = json.loads(done.stdout)
    assert done.returncode == 0 and record["targets"] == {"base": base, "head": head, "anchor": base}
    floors.write_text("[floor_percent]\nprefill = 0.1\n")
    assert phaseline(*checked, "--floors", str(floors)).returncode == 1


def test_floors_that_would_hide_what_must_be_caught_are_not_written(phaseline: Run, tmp_path: Path) -> None:
    floors, script = tmp_path / "floors.toml", tmp_path / "switching.sh"
    script.write_text(
        f"echo >> {tmp_path}/turns\n"
        f"turn=$(($(wc -l < {tmp_path}/turns) % 2))\n"
        """echo "{\\"ttft_s\\": $turn.1, \\"tpot_s\\": 0.1}"\n"""
    )
    switching = f"cmd:sh {script}"
    done = phaseline("guard", "record", switching, *QUICK, "--no-answers", "--floors", str(floors))
    assert (done.returncode, done.stderr) == (4, "")
    assert "is not written: the noise of prefill hides the 5% that must not pass" in done.stdout
    assert not floors.exists()


def test_the_file_in_the_folder_is_heeded(phaseline: Run, tmp_path: Path) -> None:
    (tmp_path / "guard.toml").write_text("[floor_percent]\ndecode = 30\n")
    base, head = printing(tmp_path, "base"), printing(tmp_path, "head", tpot=0.12)
    checked = ("guard", "check", base, head, *QUICK, "--catch", "40")
    assert phaseline(*checked, cwd=tmp_path).returncode == 0
    assert phaseline(*checked).returncode == 1


def test_builds_serve_in_processes_of_their_own(phaseline: Run, tiny: str, tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    options = ("--model", f"{tiny},threads=1,context=2048", "--aa", "--out", str(out), "--least", "2", "--most", "2")
    done = phaseline("guard", "check", "this", *options, "--prompt-tokens", "8", "--output-tokens", "3", "--asks", "1")
    assert (done.returncode, done.stderr) == (4, "")  # two replicates decide nothing
    record = json.loads(out.read_text())
    assert set(record["systems"]) == {"base", "head", "again"}
    assert record["systems"]["head"]["options"]["threads"] == 1
    for made in record["replicates"]:
        assert all(len(run["prefill"]) == len(run["traces"]) == 1 for run in made.values())
    assert record["noise"] == {"prefill": None, "decode": None}


def test_a_proof_on_our_engine_and_on_a_server(phaseline: Run, tiny: str, tmp_path: Path) -> None:
    out = tmp_path / "proof.json"
    small = (*QUICK, "--prompt-tokens", "60", "--output-tokens", "9", "--out", str(out))
    with truth_server(Script(steady(0.01, 0.005, 9), wire=Wire(counts="token_ids"))) as server:
        for target, slowdown in (
            (f"phaseline:{tiny},threads=1,context=2048", "1000"),
            (f"openai:{server.url},model=truth", "300"),
        ):
            done = phaseline("guard", "prove", target, *small, "--slowdown", slowdown)
            record = json.loads(out.read_text())
            nothing, *slowed = record["results"]
            assert (done.returncode, done.stderr) == (record["status"], "") and nothing["injected"] == "nothing"
            for row, (injected, other) in zip(slowed, (("prefill", "decode"), ("decode", "prefill")), strict=True):
                assert row["injected"] == injected and injected in row["slower"]
                assert row["losses"][injected] > 3 * row["losses"][other]  # a busy machine may slow that one as well
            assert done.stdout.startswith(record["finding"]) and done.stdout.count("refused") >= 2


def test_servers(phaseline: Run, tmp_path: Path) -> None:
    def script(gap: float, text: str = "tok ") -> Script:
        return Script(steady(0.005, gap, 9), wire=Wire(counts="token_ids", token_text=text))

    scripts = script(0.004), script(0.02), script(0.004, "x")
    with truth_server(scripts[0]) as base, truth_server(scripts[1]) as slow, truth_server(scripts[2]) as odd:
        targets = [f"openai:{server.url},model=truth" for server in (base, slow, odd)]
        done = phaseline("guard", "check", targets[0], targets[1], *QUICK, "--json")
        record = json.loads(done.stdout)
        assert done.returncode == 1 and "slower" in {r["verdict"] for r in record["results"] if r["phase"] == "decode"}
        assert all(len(run["traces"]) == 1 for made in record["replicates"] for run in made.values())
        done = phaseline("guard", "check", targets[0], targets[2], *QUICK)
        assert done.returncode == 3 and "from character 1 on" in done.stdout


def test_ctrl_c_keeps_what_was_measured(start: Start, tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    marks = tmp_path / "marks"
    slow = f"cmd:sh -c 'echo x >> {marks}; cat {printing(tmp_path, 'base').removeprefix('cmd:cat ')}'"
    process = start("guard", "check", slow, slow, "--least", "90", "--most", "90", "--out", str(out))
    while not marks.exists() or len(marks.read_text().split()) < 8:
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=30)
    assert process.returncode == 130 and "interrupted" in complaint
    record = json.loads(out.read_text())
    assert record["partial"] is True and 1 <= len(record["replicates"]) < 90


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "this"], "say what it serves by --model"),
        (["check", "phaseline:MODEL", "this", "--model", "MODEL"], "only targets of one sort"),
        (["check", "cmd:true", "openai:http://127.0.0.1:9"], "only targets of one sort"),
        (["check", "rev:no-such-revision", "--model", "MODEL"], "revision 'no-such-revision' is unknown to git"),
        (["check", "cmd:false", "cmd:false"], "exit status 1"),
        (["check", "cmd:", "cmd:true"], "an empty command"),
        (["check", "cmd:true", "cmd:true"], "prints nothing about prefill and decode"),
        (["check", "cmd:true", "cmd:true", "--floors", "none.toml"], "cannot read the floors from none.toml"),
        (["check", "cmd:true", "cmd:true", "--catch", "0"], "catch must lie between 0 and 1"),
        (["check", "cmd:true", "cmd:true", "--least", "200"], "replicates from 200 to 140"),
        (["check", "cmd:true", "cmd:true", "--output-tokens", "1"], "output = 1: it must be at least 2"),
        (["check", "cmd:true", "cmd:true", "--asks", "0"], "--asks 0: "),
        (["check", "cmd:true", "cmd:true", "--settle", "-1"], "--settle -1.0: it must be from 0"),
        (["record", "cmd:true", "--floors", "/none/guard.toml"], "there is no folder /none"),
        (["prove", "cmd:true"], "a command cannot be slowed in one phase"),
        (["prove", "llamacpp:MODEL"], "only phaseline, rev, this, and servers by their URL can be slowed"),
        (["prove", "phaseline:MODEL", "--slowdown", "0"], "both must be above 0"),
        (["prove", "phaseline:MODEL", "--trials", "0"], "both must be above 0"),
    ],
)
def test_what_is_refused(capsys: pytest.CaptureFixture[str], plain: str, words: list[str], said: str) -> None:
    assert main(["guard", *(word.replace("MODEL", plain) for word in words)]) == 2
    out, complaint = capsys.readouterr()
    assert said in complaint and complaint.count("\n") == 1 and out == ""
