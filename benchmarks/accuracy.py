"""How close the default numerics come to the float32 reference on public-domain prose, in prefill and in decode alike.

The text is read in windows, each from an empty context, with the logits of every row; keys and values are kept in the
default type. Against the reference (numpy, float32 throughout) stand: prefill (a window as one chunk), decode (the same
tokens, one a step), and, emulated in the reference, activations rounded to 8 bits per 32, as other engines compute.
"""

import argparse
import copy
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from phaseline.engine.engine import Engine
from phaseline.engine.load import load
from phaseline.execute.base import Executor
from phaseline.execute.host import usable_cores
from phaseline.files.zoo import resolve
from phaseline.program.ir import Value
from phaseline.program.ops import Context, Linear
from phaseline.program.step import Segment, Step, Want

TEXT = Path(__file__).parent / "texts" / "alice.txt"
PERPLEXITY, KL, DISAGREEMENTS = 0.001, 5e-4, 1 / 3  # the most allowed; the last, as a share of what 8 bits make
ROWS_AT_ONCE = 64  # of probabilities, so that they stay small
Floats = NDArray[Any]


@dataclass(slots=True)
class Score:
    """Sums over the rows of a contender: of KL(reference, it), of what the next token cost, of other first choices."""

    rows: int = 0
    kl: float = 0.0
    nll: float = 0.0
    disagreements: int = 0

    def add(self, exact: Floats, logits: Floats, following: Floats) -> None:
        """Rows of log-probabilities of the reference (rows, vocab), of logits, and of the tokens that came next."""
        got = log_softmax(logits)
        self.rows += len(got)
        self.kl += float(np.sum(np.exp(exact) * (exact - got)))
        self.nll -= float(np.sum(got[np.arange(len(got)), following]))
        self.disagreements += int(np.sum(exact.argmax(axis=1) != got.argmax(axis=1)))

    def row(self, reference: "Score") -> dict[str, float]:
        return {
            "perplexity": float(np.exp(self.nll / self.rows)),
            "perplexity_ratio": float(np.exp((self.nll - reference.nll) / self.rows)),
            "mean_kl": self.kl / self.rows,
            "disagreements": self.disagreements,
            "rows": self.rows,
        }


def log_softmax(logits: Floats) -> Floats:
    """In float64, (rows, vocab)."""
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return np.asarray(x - np.log(np.sum(np.exp(x), axis=1, keepdims=True)))


class EightBitLinear:
    """A Linear of the reference whose prepared input has 8 bits per 32: multiples of the largest over 127."""

    def __init__(self, op: Linear) -> None:
        self._op = op

    def reference(self, ctx: Context) -> None:
        op, x = self._op, ctx.values[self._op.x]
        if op.norm:
            x = op.norm.reference(x, ctx.weights)
        blocks = x.reshape(len(x), -1, 32)
        step = np.maximum(np.abs(blocks).max(axis=2, keepdims=True), np.float32(1e-30)) / 127
        rounded = Value("rounded", op.x.rows, op.x.width)
        ctx.values[rounded] = (np.round(blocks / step) * step).reshape(x.shape)
        replace(op, x=rounded, norm=None).reference(ctx)
        del ctx.values[rounded]


def in_eight_bits(reference: Any) -> Executor:
    """The reference on the same weights and pages, with activations of 8 bits."""
    emulated = copy.copy(reference)
    ops = [EightBitLinear(op) if isinstance(op, Linear) else op for op in reference.program.ops]
    emulated.program = replace(reference.program, ops=ops)
    return emulated  # type: ignore[no-any-return]


class Reader:
    """Reads windows into one slot of an engine, over and over."""

    def __init__(self, engine: Engine, window: int) -> None:
        table = engine.scheduler.table
        self._slot = table.open((), reuse=False)[0]
        table.grow(self._slot, window)
        self._pages = table.matrix

    def chunk(self, executor: Executor, tokens: Sequence[int]) -> Floats:
        """Logits of all rows, (tokens, vocab)."""
        return executor.forward(Step([Segment(self._slot, 0, tokens, Want.ALL)]), self._pages)

    def walk(self, executor: Executor, tokens: Sequence[int]) -> Floats:
        """The same by decode steps."""
        steps = (Step([Segment(self._slot, at, [token])]) for at, token in enumerate(tokens))
        return np.concatenate([executor.forward(step, self._pages) for step in steps])


def windows(tokens: Sequence[int], window: int) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Each window of tokens, with those that follow them."""
    for at in range(0, len(tokens) - window, window):
        yield tokens[at : at + window], tokens[at + 1 : at + window + 1]


def compare(model: str, threads: int, tokens: int, window: int, progress: Callable[[int, int], None]) -> dict[str, Any]:
    ours = load(model, threads=threads, context=window, chunk=window)
    plain = load(model, numerics="reference", context=window)
    assert ours.tokenizer
    ids = ours.tokenizer.encode(TEXT.read_text(encoding="utf-8"))[: tokens + 1]
    eight, read, read_plain = in_eight_bits(plain.executor), Reader(ours, window), Reader(plain, window)
    names = ("float32 reference", "prefill", "decode", "8-bit activations")
    scores = {name: Score() for name in names}
    same_bits = True
    for number, (part, following) in enumerate(windows(ids, window)):
        progress(number * window, len(ids) - 1)
        exact, prefill = read_plain.chunk(plain.executor, part), read.chunk(ours.executor, part)
        decode, rounded = read.walk(ours.executor, part), read_plain.chunk(eight, part)
        same_bits &= prefill.tobytes() == decode.tobytes()
        for a in range(0, window, ROWS_AT_ONCE):
            rows, log_p = slice(a, a + ROWS_AT_ONCE), log_softmax(exact[a : a + ROWS_AT_ONCE])
            for name, logits in zip(names, (exact, prefill, decode, rounded), strict=True):
                scores[name].add(log_p, logits[rows], np.array(following[rows]))
    results = {name: score.row(scores[names[0]]) for name, score in scores.items()}
    return {"window": window, "results": results, "decode_has_the_bits_of_prefill": same_bits}


def verdicts(results: dict[str, dict[str, float]], phase: str) -> dict[str, bool]:
    """Whether a phase keeps each limit."""
    own, eight = results[phase], results["8-bit activations"]
    return {
        f"perplexity within {PERPLEXITY:.1%}": abs(own["perplexity_ratio"] - 1) <= PERPLEXITY,
        f"mean KL at most {KL:g}": own["mean_kl"] <= KL,
        "top-1 disagreements at most a third of those of 8 bits": own["disagreements"]
        <= DISAGREEMENTS * eight["disagreements"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a pulled name or a .gguf path")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--tokens", type=int, default=10240, help="of the text, in whole windows")
    parser.add_argument("--window", type=int, default=512, help="tokens read from an empty context")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    def progress(done: int, total: int) -> None:
        print(f"token {done} of {total}", file=sys.stderr, end="\r")

    record = {"model": args.model, "text": TEXT.name} | compare(
        str(resolve(args.model)), args.threads, args.tokens, args.window, progress
    )
    record["verdicts"] = {phase: verdicts(record["results"], phase) for phase in ("prefill", "decode")}
    if args.json:
        print(json.dumps(record))
    else:
        show(record)
    return 0


def show(record: dict[str, Any]) -> None:
    results = record["results"]
    rows = results["prefill"]["rows"]
    table = Table(title=f"{record['model']}: {rows} tokens of {record['text']}, windows of {record['window']}")
    for heading in ("", "perplexity", "over the reference", "mean KL", "other first choice"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, row in results.items():
        share = f"{row['disagreements']} ({row['disagreements'] / row['rows']:.2%})"
        table.add_row(
            name, f"{row['perplexity']:.4f}", f"{row['perplexity_ratio'] - 1:+.4%}", f"{row['mean_kl']:.2e}", share
        )
    console = Console()
    console.print(table)
    for phase, kept in record["verdicts"].items():
        for limit, met in kept.items():
            console.print(f"{phase}: {limit}: {'met' if met else 'MISSED'}", highlight=False)
    alike = "the same bits" if record["decode_has_the_bits_of_prefill"] else "OTHER BITS"
    console.print(f"decode gave {alike} as prefill")


if __name__ == "__main__":
    sys.exit(main())
