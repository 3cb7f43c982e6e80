"""Records of every kind, written by the commands themselves on a tiny model."""

import contextlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phaseline.cli.main import main
from support.tiny import write_llama

Record = dict[str, Any]
KINDS = (
    *("measure", "prefill", "decode", "batch", "endtoend", "interference", "chunk", "load"),
    *("regime", "compare", "guard"),
)


def commands(model: str) -> Mapping[str, list[str]]:
    """The quickest command line for each kind."""
    lab = {
        "prefill": ["--lengths", "1,8,64,256", "--repeats", "1"],
        "decode": ["--contexts", "64,256", "--repeats", "1"],
        "batch": ["--streams", "1,2,4", "--stored", "64", "--repeats", "1"],
        "endtoend": ["--prompts", "16,64", "--outputs", "4,16", "--repeats", "2", "--goodput", "ttft:500"],
        "interference": ["--chunks", "0,64", "--intruder-tokens", "256", "--repeats", "2", "--victims", "2"],
        "chunk": ["--sizes", "8,32,128", "--intruder-tokens", "256", "--repeats", "2", "--itl-budget", "20"],
        "load": ["--num-prompts", "12", "--random-output-len", "8", "--sweep-concurrency", "1,2"],
        "regime": ["--tokens", "64", "--stored", "64", "--streams", "1,2", "--repeats", "1"],
    }
    system = f"phaseline:{model}"
    short = ["--prompts", "32,64", "--context", "32", "--tokens", "8", "--rounds", "2", "--aa"]
    work = ["--prompt-tokens", "32", "--output-tokens", "9", "--asks", "1", "--least", "3", "--most", "3"]
    return {
        "measure": ["measure", model, "--repeats", "2"],
        **{name: ["lab", name, model, *options] for name, options in lab.items()},
        "compare": ["lab", "compare", system, f"{system},mode=walk", *short],
        "guard": ["guard", "check", system, f"{system},mode=eager", "--no-answers", *work],
    }


def make_records(folder: Path) -> dict[str, Record]:
    """One record of each kind."""
    model = str(write_llama(folder / "tiny.gguf", context=2048))
    found = {}
    for kind, command in commands(model).items():
        out = folder / f"{kind}.json"
        quiet = io.TextIOWrapper(io.BytesIO())
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            main([*command, "--out", str(out)])
        found[kind] = json.loads(out.read_text(encoding="utf-8"))
    return found
