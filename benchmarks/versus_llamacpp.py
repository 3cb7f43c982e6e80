"""Both phases against llama.cpp (the `xllamacpp` wheel), interleaved in one process on the same file and threads.

llama.cpp is taken at its own word: the `timings` of its server, without HTTP. Phaseline is timed from outside:
time to first token, and time per output token. A ratio above 1 means that Phaseline is faster.
"""

import argparse
import json
import random
import sys
import time
import urllib.request
from collections.abc import Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from phaseline import __version__
from phaseline.engine.load import load
from phaseline.execute.host import cpu_model, usable_cores
from phaseline.files.zoo import resolve
from phaseline.lab.drive import Job, drive
from phaseline.lab.metrics import trace_metrics
from phaseline.lab.stats import bootstrap_interval, median
from phaseline.lab.systems.phaseline import PhaselineSystem

SETTLE_S = 0.05  # lets the other engine's threads fall asleep


class Contender(Protocol):
    name: str

    def prefill(self, prompt: Sequence[int]) -> float:
        """Seconds to read the prompt."""

    def decode(self, prompt: Sequence[int], tokens: int) -> float:
        """Seconds per generated token."""


class Phaseline:
    def __init__(self, model: str, threads: int, level: str | None) -> None:
        self._system = PhaselineSystem(load(model, threads=threads, context=2048, level=level))
        self.name = f"phaseline {__version__} ({self._system.executor.level})"

    def prefill(self, prompt: Sequence[int]) -> float:
        ttft = trace_metrics(drive(self._system, [Job(prompt, 1)])[0]).ttft
        assert ttft is not None
        return ttft

    def decode(self, prompt: Sequence[int], tokens: int) -> float:
        tpot = trace_metrics(drive(self._system, [Job(prompt, tokens)])[0]).tpot
        assert tpot is not None
        return tpot


class LlamaCpp:
    def __init__(self, model: str, threads: int) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = model
        params.n_gpu_layers = 0
        params.n_ctx = 2048
        params.n_parallel = 1
        params.warmup = False
        params.fit_params = False
        params.cpuparams.n_threads = threads
        params.cpuparams_batch.n_threads = threads
        self._server = xllamacpp.Server(params)
        self.name = f"llama.cpp (xllamacpp {xllamacpp.__version__})"

    def prefill(self, prompt: Sequence[int]) -> float:
        timings = self._complete(prompt, 1)
        assert timings["prompt_n"] == len(prompt), "llama.cpp did not read the whole prompt"
        return float(timings["prompt_ms"]) / 1e3

    def decode(self, prompt: Sequence[int], tokens: int) -> float:
        timings = self._complete(prompt, tokens)
        return float(timings["predicted_ms"]) / 1e3 / timings["predicted_n"]

    def _complete(self, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
        body = {"prompt": list(prompt), "n_predict": tokens, "temperature": 0}
        body |= {"ignore_eos": True, "cache_prompt": False}
        request = urllib.request.Request(
            self._server.listening_address + "/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=600) as answer:
            timings: dict[str, Any] = json.load(answer)["timings"]
        return timings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a pulled name or a .gguf path")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--prompt", type=int, default=512, help="prompt tokens of the prefill row")
    parser.add_argument("--tokens", type=int, default=64, help="generated tokens of the decode row")
    parser.add_argument("--level", help="force an instruction-set level of Phaseline")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    path = str(resolve(args.model))
    ours = Phaseline(path, args.threads, args.level)
    theirs = LlamaCpp(path, args.threads)
    rng = random.Random(0)
    seconds: dict[tuple[str, str], list[float]] = {}
    for round_ in range(args.rounds + 1):  # the first is a warm-up
        work = [(phase, c) for phase in ("prefill", "decode") for c in (ours, theirs)]
        rng.shuffle(work)
        for phase, contender in work:
            time.sleep(SETTLE_S)
            if phase == "prefill":
                took = contender.prefill([rng.randrange(1000, 40000) for _ in range(args.prompt)])
            else:
                took = contender.decode([rng.randrange(1000, 40000) for _ in range(16)], args.tokens)
            if round_:
                seconds.setdefault((phase, contender.name), []).append(took)
        print(f"round {round_} of {args.rounds}", file=sys.stderr, end="\r")
    rows = [_row(p, n, seconds, ours.name, theirs.name) for p, n in (("prefill", args.prompt), ("decode", 1))]
    record = {"model": args.model, "cpu": cpu_model(), "threads": args.threads, "rows": rows}
    if args.json:
        print(json.dumps(record))
    else:
        _show(record, ours.name, theirs.name, args.prompt, args.tokens)
    return 0


def _row(phase: str, tokens: int, seconds: dict[tuple[str, str], list[float]], a: str, b: str) -> dict[str, Any]:
    own, other = seconds[phase, a], seconds[phase, b]
    ratios = [y / x for x, y in zip(own, other, strict=True)]
    return {
        "phase": phase,
        "phaseline_tok_s": tokens / median(own),
        "llamacpp_tok_s": tokens / median(other),
        "ratio": median(ratios),
        "interval": bootstrap_interval(ratios),
        "seconds": {"phaseline": own, "llamacpp": other},
    }


def _show(record: dict[str, Any], ours: str, theirs: str, prompt: int, tokens: int) -> None:
    table = Table(title=f"{record['model']}, {record['threads']} threads, {record['cpu']}")
    for heading in ("phase", f"{ours} tok/s", f"{theirs} tok/s", "ratio", "95% interval"):
        table.add_column(heading, justify="right")
    for row in record["rows"]:
        low, high = row["interval"]
        name = f"prefill {prompt}" if row["phase"] == "prefill" else f"decode {tokens}"
        table.add_row(
            name,
            f"{row['phaseline_tok_s']:.1f}",
            f"{row['llamacpp_tok_s']:.1f}",
            f"{row['ratio']:.2f}",
            f"{low:.2f} - {high:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
