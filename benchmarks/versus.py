"""Both phases against every peer that is installed, by turns on the same file, threads and prompts.

Each system runs in a process of its own, anew in every round, and is halted while another one has its turn. A ratio
above 1 means that Phaseline is faster; its interval is one of rounds.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from phaseline.cli import guard_worker
from phaseline.cli.progress import progress_bar
from phaseline.errors import PhaselineError
from phaseline.execute.host import cpu_model, usable_cores
from phaseline.files.gguf import open_gguf
from phaseline.files.zoo import resolve
from phaseline.lab.experiments.base import conduct
from phaseline.lab.experiments.compare import Compare, Roles
from phaseline.lab.guard_builds import Build, WorkerContender, this_build
from phaseline.lab.prompts import random_asks
from phaseline.lab.standings import Ratio

PEERS = {
    "xllamacpp": "xllamacpp",
    "llama-cpp-python": "llama_cpp",
    "transformers": "transformers",
    "openvino-genai": "openvino_genai",
    "vllm": "vllm",
}  # and their modules
FOLDERS = {"vllm"}  # peers that read no .gguf, and take long to start


class Turns(WorkerContender):
    """A process that runs only while it is asked, and gets `patience` seconds for an answer: then it is ended.

    One that is `lasting` serves all rounds, where its model takes long to load: a stop only halts it.
    """

    def __init__(self, *args: Any, patience: float, lasting: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._patience, self._lasting = patience, lasting

    async def start(self) -> None:
        if self._process and self._process.returncode is None:
            return
        await self.close()
        await super().start()

    async def stop(self) -> None:
        if not self._lasting:
            await self.close()

    async def close(self) -> None:
        self._signal(signal.SIGCONT)
        await super().stop()

    async def _ask(self, what: Mapping[str, Any]) -> dict[str, Any]:
        self._signal(signal.SIGCONT)
        try:
            return await asyncio.wait_for(super()._ask(what), self._patience)
        except TimeoutError:
            self._signal(signal.SIGKILL)
            raise PhaselineError(f"{self.name}: no answer within {self._patience:g} s") from None
        finally:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        if self._process and self._process.returncode is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.killpg(self._process.pid, number)


def peer_build(name: str, python: str) -> Build:
    """How a peer is started, by an interpreter that has it."""
    script = Path(__file__).parent / "peers" / f"{PEERS[name]}_peer.py"
    return Build(name, [python, str(script)], dict(os.environ), script.parent)


def wanted_peers(chosen: Sequence[str] | None) -> list[Build]:
    """Those named, as NAME or NAME=PYTHON, else all that this interpreter has."""
    if chosen is None:
        return [peer_build(name, sys.executable) for name, module in PEERS.items() if find_spec(module)]
    pairs = [one.partition("=") for one in chosen]
    unknown = [name for name, _, _ in pairs if name not in PEERS]
    if unknown:
        raise SystemExit(f"no peer is called {', '.join(unknown)}; there are {', '.join(PEERS)}")
    return [peer_build(name, python or sys.executable) for name, _, python in pairs]


async def that_serve(systems: Sequence[Turns], vocabulary: range) -> list[Turns]:
    """All but the peers that cannot serve the model: these say why. Doing it also warms the page cache."""
    good = list[Turns]()
    for number, system in enumerate(systems):
        try:
            await system.start()
            await system.serve(random_asks(1, 16, 2, vocabulary=vocabulary, options={"temperature": 0})[0])
            good.append(system)
        except PhaselineError as error:
            if number == 0:
                raise
            print(f"left out: {error}", file=sys.stderr)
            await system.close()
        await system.stop()
    return good


def take_turns(
    systems: Sequence[Turns], vocabulary: range, args: argparse.Namespace, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The record of those that serve, over `rounds` of a prompt of `prompt` and an answer of `tokens`."""

    async def run() -> dict[str, Any]:
        try:
            good = await that_serve(systems, vocabulary)
            sizes = {"tokens": args.tokens, "rounds": args.rounds, "context": 16}
            experiment = Compare(good, Roles(len(good)), prompts=[args.prompt], **sizes)
            with progress_bar() as progress:
                return await conduct(experiment, progress, facts)
        finally:
            for system in systems:
                await system.close()

    return asyncio.run(run())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a pulled name or a .gguf path")
    parser.add_argument("--peer", action="append", metavar="NAME[=PYTHON]", help=f"of {', '.join(PEERS)} (all here)")
    parser.add_argument("--folder", help=f"the model as a Hugging Face folder, for {', '.join(FOLDERS)}")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompt", type=int, default=512, help="prompt tokens of the prefill rows")
    parser.add_argument("--tokens", type=int, default=48, help="generated tokens of the decode rows")
    parser.add_argument("--level", help="force an instruction-set level of Phaseline")
    parser.add_argument("--patience", type=float, default=60, metavar="S", help="a turn that takes longer is given up")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    path = resolve(args.model).resolve()
    with open_gguf(path) as file:
        vocabulary = range(len(file.metadata["tokenizer.ggml.tokens"]))
    options = {"threads": args.threads, "context": 2048}
    ours = options | ({"level": args.level} if args.level else {})
    builds = [this_build(Path(guard_worker.__file__).resolve()), *wanted_peers(args.peer)]
    systems = []
    for number, build in enumerate(builds):
        slow = build.name in FOLDERS
        model = args.folder if slow and args.folder else str(path)
        asked = options if number else ours
        systems.append(Turns(build, model, vocabulary, asked, patience=args.patience, lasting=slow))
    facts = {"cpu": cpu_model(), "threads": args.threads, "model": args.model}
    record = take_turns(systems, vocabulary, args, facts)
    if args.json:
        print(json.dumps(record))
    else:
        show(record)
    return 0


def show(record: Mapping[str, Any]) -> None:
    table = Table(title=f"{record['model']}, {record['threads']} threads, {record['cpu']}, {record['rounds']} rounds")
    for heading in ("phase", "peer", "phaseline tok/s", "peer tok/s", "ratio", "95% interval"):
        table.add_column(heading, justify="left" if heading in ("phase", "peer") else "right")
    first, *_ = record["systems"]
    own = {row["phase"]: row for row in record["results"] if row["system"] == first["name"]}
    for row in record["results"]:
        mine, ratio = own[row["phase"]], Ratio.of(row["seconds"], own[row["phase"]]["seconds"])
        if row is mine:
            continue
        size = row["tokens"] if row["phase"] == "decode" else row["prompt_tokens"]
        rates = [f"{one['tok_s']:.1f}" if one["tok_s"] else "-" for one in (mine, row)]
        value = f"{ratio.value:.2f}" if ratio else "-"
        interval = f"{ratio.low:.2f} - {ratio.high:.2f}" if ratio and ratio.low is not None else "-"
        table.add_row(f"{row['phase']} {size}", row["system"], *rates, value, interval)
    console = Console()
    console.print(table)
    for system in record["systems"]:
        console.print(f"{system['name']}: {system['version']}", highlight=False)
    for fault in {fault for row in record["results"] for fault in row["faults"]}:
        console.print(f"left out: {fault}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
