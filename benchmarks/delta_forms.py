"""Delta attention's recurrence, as the engine runs it, beside a chunk form: time per row and head, on one thread.

Both are compiled for this script, from the engine's own source and from `delta_chunk.cpp`, and must agree with the
reference before they are timed. FLOPs are those of the recurrence, 7 dim^2 a row, for both.
"""

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from timing import show, summary, take_turns

from phaseline import _native
from phaseline.errors import UnsupportedError
from phaseline.execute.host import cpu_model
from phaseline.execute.native import best_level, check_level
from phaseline.lab.stats import median
from phaseline.program.ops.delta import recurrent

ROOT = Path(__file__).parents[1]
FORMS = ("recurrence", "chunks")
FLAGS = {
    "portable": ["-msse2"],
    "avx2": ["-mavx2", "-mfma", "-mf16c", "-mbmi2"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mavx2", "-mfma", "-mf16c",
               "-mbmi2", "-mprefer-vector-width=512"],
}  # fmt: skip
HEADS = 8  # that take turns, as in a model: a state does not stay in the first cache


def build(level: str, compiler: str, folder: Path) -> ctypes.CDLL:
    source, made = Path(__file__).with_name("delta_chunk.cpp"), folder / "forms.so"
    options = ["-std=c++20", "-O3", "-fno-math-errno", "-ffp-contract=off", "-fPIC", "-shared", *FLAGS[level]]
    places = [f"-DPHASELINE_LEVEL={level}", f"-I{ROOT / 'src' / 'phaseline' / 'csrc'}", str(source), "-o", str(made)]
    subprocess.run([compiler, *options, *places], check=True)
    return ctypes.CDLL(str(made))


class Rows:
    """Random rows of `HEADS` heads, ready for the kernels, and a state for each."""

    def __init__(self, library: ctypes.CDLL, rows: int, dim: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        unit = rng.normal(size=(2, rows, HEADS, dim))
        unit /= np.linalg.norm(unit, axis=3, keepdims=True)
        self.q, self.k = unit[0] * dim**-0.5, unit[1]
        self.v, self.beta = rng.normal(size=(rows, HEADS, dim)), rng.random((rows, HEADS))
        self.g = -np.exp(rng.normal(-2, 2, (rows, HEADS, dim)))
        self.state = rng.normal(size=(HEADS, dim, dim))
        floats, self.dim, self._library = library.row_floats(dim), dim, library
        self._rows = np.zeros((HEADS, rows, floats), np.float32)
        for n, part in enumerate((self.q, self.k, np.exp(self.g), self.v)):
            self._rows[:, :, n * dim : (n + 1) * dim] = part.swapaxes(0, 1)
        self._rows[:, :, 4 * dim] = self.beta.T
        self._rows[:, :, 4 * dim + 1] = (self.q * self.k).sum(axis=2).T
        self._state = aligned(HEADS * dim * dim).reshape(HEADS, dim // 16, dim, 16)
        self._out = np.zeros((HEADS, rows, dim), np.float32)

    def begin(self) -> None:
        """The state before the first row."""
        self._state[:] = self.state.reshape(HEADS, self.dim, -1, 16).swapaxes(1, 2)

    def run(self, form: str) -> NDArray[np.float32]:
        """All rows through each head's state: outputs, (rows, HEADS, dim)."""
        run = self._library[f"run_{form}"]
        for head in range(HEADS):
            arrays = (self._rows[head], self._state[head], self._out[head])
            rows, state, out = (array.ctypes.data_as(ctypes.c_void_p) for array in arrays)
            run(rows, len(self.q), self.dim, state, out)
        return self._out.swapaxes(0, 1)

    def error(self, form: str) -> float:
        """Of outputs and of the state behind them, against the reference in float64, relative to their largest."""
        self.begin()
        found = self.run(form)
        want, state = recurrent(self.q, self.k, self.v, self.g, self.beta, self.state)
        behind = self._state.swapaxes(1, 2).reshape(state.shape)
        return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in ((found, want), (behind, state)))


def aligned(count: int) -> NDArray[np.float32]:
    """So many floats from a cache line on."""
    memory = np.zeros(count + 16, np.float32)
    return memory[-memory.ctypes.data % 64 // 4 :][:count]


def compare(library: ctypes.CDLL, lengths: list[int], dim: int, rounds: int, level: str) -> dict[str, Any]:
    found: dict[str, Any] = {"level": level, "cpu": cpu_model(), "dim": dim, "lengths": {}}
    for rows in lengths:
        data = Rows(library, rows, dim)
        errors = {form: data.error(form) for form in FORMS}
        # Sums of dim terms in float32, for each row that a state goes through.
        if max(errors.values()) > (rows + dim) * 2.0**-24 * 8:
            raise SystemExit(f"the forms do not agree with the reference: {errors}")
        seconds = take_turns({form: partial(data.run, form) for form in FORMS}, rounds)
        each = {form: [s / (rows * HEADS) for s in seconds[form]] for form in FORMS}
        found["lengths"][rows] = {
            "error": errors,
            "ns": {form: summary([1e9 * s for s in each[form]]) for form in FORMS},
            "gflops": {form: 7e-9 * dim**2 / median(each[form]) for form in FORMS},
            "recurrence over chunks": summary([a / b for a, b in zip(each["recurrence"], each["chunks"], strict=True)]),
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="16,64,256", help="of a chunk, with commas between them")
    parser.add_argument("--dim", type=int, default=128, help="of a head: a multiple of 32, up to 256")
    parser.add_argument("--level", default=best_level(), choices=_native.levels())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--compiler", default="c++")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.dim % 32 or not 0 < args.dim <= 256:
        raise UnsupportedError(f"--dim {args.dim}: a multiple of 32, up to 256, is needed")
    with tempfile.TemporaryDirectory() as folder:
        library = build(check_level(args.level), args.compiler, Path(folder))
        found = compare(library, [int(n) for n in args.rows.split(",")], args.dim, args.rounds, args.level)
    if args.json:
        print(json.dumps(found))
        return 0
    for rows, result in found["lengths"].items():
        lines = [(f"{form}, ns per row and head", result["ns"][form], "") for form in FORMS]
        ratio = ("recurrence over chunks", result["recurrence over chunks"], "")
        rates = ", ".join(f"{form} {result['gflops'][form]:.0f}" for form in FORMS)
        show(f"{rows} rows, dim {args.dim}, {found['level']}: GFLOP/s of the recurrence's: {rates}", [*lines, ratio])
    return 0


if __name__ == "__main__":
    sys.exit(main())
