"""What starting costs, and that the walk is decode: cold start, resident memory, and the walk's rate over decode's.

The walk reads a prompt one token a step with decode's own kernels, so its rate must be decode's: a lower one means
that reading a prompt pays for something that decode does not. It may be higher, since the walk computes logits only
at its end.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path

from phaseline.engine.load import load
from phaseline.files.zoo import resolve
from phaseline.lab.drive import Job, drive
from phaseline.lab.metrics import trace_metrics
from phaseline.lab.stats import bootstrap_interval, median
from phaseline.lab.systems.phaseline import PhaselineSystem

_MEMORY = """
import sys
from phaseline.engine.load import load
from phaseline.files.gguf import open_gguf
from phaseline.files.tokenizer import Tokenizer
def resident():
    return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith("VmRSS"))
with open_gguf(sys.argv[1]) as file:
    tokenizer = Tokenizer.from_metadata(file.metadata)
base = resident()
del tokenizer
engine = load(sys.argv[1])
print(base, resident())
"""


def cold_start(path: str, runs: int) -> list[float]:
    """Seconds from starting a process to its first token on standard output, page cache warm."""
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        command = [sys.executable, "-m", "phaseline", "run", path, "Hello", "--max-tokens", "1", "--ignore-eos"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout and process.stdout.read(1)
            seconds.append(time.perf_counter() - start)
    return seconds[1:]  # the first warms the page cache


def memory(path: str) -> tuple[int, int]:
    """Resident bytes of a process that has all but the weights (modules, tokenizer), and of one that has loaded."""
    output = subprocess.run([sys.executable, "-c", _MEMORY, path], capture_output=True, text=True, check=True).stdout
    base, loaded = map(int, output.split())
    return base, loaded


def walk_over_decode(path: str, rounds: int, tokens: int = 48) -> list[float]:
    """Ratio of the walk's rate to decode's over the same positions, once per round."""
    system = PhaselineSystem(load(path, context=512))
    vocab = system.executor.program.vocab
    rng = random.Random(0)
    ratios = []
    for _ in range(rounds + 1):
        system.configure("walk", 1)
        read = trace_metrics(drive(system, [Job([rng.randrange(vocab) for _ in range(tokens)], 1)])[0]).ttft
        write = trace_metrics(drive(system, [Job([rng.randrange(vocab)], tokens)])[0]).tpot
        assert read and write
        ratios.append(write / (read / tokens))
    return ratios[1:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    path = str(resolve(args.model))
    size = Path(path).stat().st_size
    start, (base, loaded), ratios = cold_start(path, args.rounds), memory(path), walk_over_decode(path, args.rounds)
    record = {
        "first_token_s": start,
        "resident_base_bytes": base,
        "resident_over_file": (loaded - base) / size,
        "walk_over_decode": ratios,
    }
    if args.json:
        print(json.dumps(record))
        return 0
    low, high = bootstrap_interval(ratios) or (0.0, 0.0)
    print(f"first token of a new process   {median(start):.2f} s ({min(start):.2f} - {max(start):.2f})")
    print(f"resident before loading        {base / 2**20:.0f} MiB")
    print(f"resident for the weights       {record['resident_over_file']:.2f} x the file")
    print(f"walk's rate over decode's      {median(ratios):.3f} ({low:.3f} - {high:.3f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
