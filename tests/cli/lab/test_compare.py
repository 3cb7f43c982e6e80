"""`phaseline lab compare`: specs, tables, denominators, refusals."""

import json
from pathlib import Path

import pytest

from phaseline.cli.main import main
from phaseline.lab.systems.truth import truth_server
from phaseline.lab.systems.truth_engine import Costs
from phaseline.lab.systems.truth_script import Script, Wire
from support.command import Run

SMALL = ("--prompts", "8,40", "--context", "16", "--tokens", "4", "--rounds", "3")
PUBLISHED = 'prefill_tok_s = 10\ndecode_tok_s = 10\ndate = 2026-01-31\nexpires = 2026-02-01\ncommit = "0123abc"\n'


def test_our_engine_against_its_own_walk_with_all_denominators(phaseline: Run, plain: str, tmp_path: Path) -> None:
    out, published = tmp_path / "compare.json", tmp_path / "published.toml"
    published.write_text(PUBLISHED + 'command = "phaseline lab compare"')
    a, b = f"phaseline:{plain},threads=1", f"phaseline:{plain},mode=walk,threads=1"
    more = ("--aa", "--parent", a, "--published", str(published), "--out", str(out))
    done = phaseline("lab", "compare", a, b, *SMALL, *more)
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(out.read_text())
    assert [row["system"] for row in record["standings"]] == [a, b] and record["prompts_of"] == "token ids"
    assert [(row["kind"], row["of"], row["expired"]) for row in record["denominators"]] == [
        ("attribution", a, False), ("parent", a, False), ("published", a, True)
    ]  # fmt: skip
    assert record["machine"]["cores"] >= 1 and set(record["noise"]) == {"prefill", "decode"}
    assert done.stdout.startswith(record["finding"])
    assert "(attribution)" in done.stdout and "good until 2026-02-01, EXPIRED" in done.stdout
    assert "commit 0123abc, by phaseline lab compare" in done.stdout
    assert "noise (the first system against itself): prefill" in done.stdout
    table = [line.split() for line in done.stdout.splitlines() if line.strip().startswith("phaseline:plain.gguf,")]
    walk = "phaseline:plain.gguf,mode=walk,threads=1"
    assert [(name, phase) for name, phase, *_ in table] == [
        ("phaseline:plain.gguf,threads=1", "prefill"), ("phaseline:plain.gguf,threads=1", "decode"),
        (walk, "prefill"), (walk, "decode"),
    ]  # fmt: skip
    assert table[2][2] == "40" and table[3][3] == "16" and float(table[2][5]) < 1


def test_servers_one_of_which_reads_token_by_token(phaseline: Run) -> None:
    def script(chunk: int) -> Script:
        engine = Costs(chunk=chunk, prompt_s=0.0001, decode_s=0.004, floor_s=0.004)
        return Script(engine=engine, wire=Wire(counts="token_ids"))

    with truth_server(script(64)) as batched, truth_server(script(1)) as single:
        specs = (f"openai:{batched.url},model=truth", f"openai:{single.url},model=truth,api=completions")
        done = phaseline("lab", "compare", *specs, *SMALL, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(done.stdout)
    assert record["prompts_of"] == "words" and all(row["faults"] == [] for row in record["results"])
    first, second = (row["phase_ratio"]["value"] for row in record["standings"])
    assert second < 2 < 4 < first
    assert f"{specs[1]} is furthest behind in prefill" in record["finding"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], "'nonsense' is not KIND:WHAT with a KIND of phaseline, openai"),
        (["phaseline:"], "is not KIND:WHAT"),
        (["phaseline:MODEL,speed=9"], "unrecognized arguments: --speed=9"),
        (["phaseline:MODEL,threads=x"], "argument --threads: invalid int value"),
        (["phaseline:MODEL,out=x"], "out is no option of a system"),
        (["phaseline:none.gguf"], "none.gguf"),
        (["openai:nowhere"], "not the base URL"),
        (["this"], "say what it serves by --model"),
        (["rev:HEAD", "--model", "none.gguf"], "none.gguf"),
        (["cmd:true", "phaseline:MODEL"], "guard takes it"),
        (["phaseline:MODEL", "--parent", "this", "--model", "MODEL"], "a build keeps its own time"),
        (["phaseline:MODEL", "--rounds", "0"], "at least 1"),
        (["phaseline:MODEL", "--published", "none.toml"], "cannot read the published figures from none.toml"),
        (["phaseline:MODEL", "--out", "/none/x.json"], "there is no folder"),
    ],
)
def test_what_is_refused(capsys: pytest.CaptureFixture[str], plain: str, words: list[str], said: str) -> None:
    assert main(["lab", "compare", *(word.replace("MODEL", plain) for word in words)]) == 2
    out, complaint = capsys.readouterr()
    assert said in complaint and complaint.count("\n") == 1 and out == ""
