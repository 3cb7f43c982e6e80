"""Both phases of the dense families at the sizes of published models, with random weights, beside other engines.

Each model is written to a temporary folder, and the systems take turns on it, as in `versus.py`; each keeps its process
over all rounds. llama.cpp reads the same file. transformers has a model of the same config, in bf16, with random
weights of its own: only speed is compared. Decode's share is of the bandwidth at which this machine reads that many
bytes (the higher of two measurements, before and after): what the step must read, as the file stores it.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from real_shapes import SHAPES, Shape, write
from rich.console import Console
from rich.table import Table
from versus import PEERS, Turns, take_turns, wanted_peers

from phaseline.cli import guard_worker
from phaseline.cli.facts import read_model
from phaseline.execute.host import cpu_model, usable_cores
from phaseline.files.quant import FORMATS
from phaseline.lab.guard_builds import this_build
from phaseline.lab.standings import Ratio
from phaseline.machine import host_rates
from phaseline.program.cost import decode_work, step_cost

CONTEXT = 1024  # of every system


def config(shape: Shape) -> dict[str, Any]:
    """The same shape as a config.json of transformers."""
    if shape.arch == "gpt2":
        sizes = {"n_layer": shape.layers, "n_embd": shape.width, "n_inner": shape.ff, "n_head": shape.heads}
        return sizes | {"model_type": "gpt2", "vocab_size": shape.vocab, "n_positions": shape.context}
    sizes = {
        "model_type": {"gemma3": "gemma3_text"}.get(shape.arch, shape.arch),
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.width,
        "intermediate_size": shape.ff,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.context,
        "tie_word_embeddings": True,
    }
    return sizes | ({"sliding_window": shape.window} if shape.window else {})


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """A model's rows: our own of each phase, and under `peers` what stands beside them."""
    shape = SHAPES[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.gguf"
        write(path, shape, format=args.type)
        (Path(folder) / "config.json").write_text(json.dumps(config(shape)))
        _, program = read_model(str(path))
        read = step_cost(program, decode_work(16 + args.tokens // 2)).bytes
        before = host_rates(round(read))
        record = take_turns(systems(path, shape, args), range(shape.vocab), args, {"model": name})
        bandwidth = max(before.read, host_rates(round(read)).read)
    first, *others = record["systems"]
    rows = {(row["phase"], row["system"]): row for row in record["results"]}
    result: dict[str, Any] = {"model": name, "type": args.type, "bandwidth": bandwidth}
    result |= {"decode_bytes": read, "systems": record["systems"]}
    for phase in ("prefill", "decode"):
        own = rows[phase, first["name"]]
        result[phase] = {key: own[key] for key in ("tok_s", "seconds", "faults")}
        result[phase]["peers"] = [_against(rows[phase, other["name"]], own) for other in others]
    result["decode"]["share"] = read / rows["decode", first["name"]]["median_s"] / bandwidth
    return result


def _against(row: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    ratio = Ratio.of(row["seconds"], own["seconds"])
    told = {"peer": row["system"], "ratio": ratio.to_dict() if ratio else None}
    return told | {key: row[key] for key in ("tok_s", "seconds", "faults")}


def systems(path: Path, shape: Shape, args: argparse.Namespace) -> list[Turns]:
    options = {"threads": args.threads, "context": CONTEXT}
    ours = options | ({"level": args.level} if args.level else {})
    own = this_build(Path(guard_worker.__file__).resolve())
    made = [Turns(own, str(path), range(shape.vocab), ours, patience=60, lasting=True)]
    for peer in wanted_peers(args.peer):
        model = path.parent if peer.name == "transformers" else path
        made.append(Turns(peer, str(model), range(shape.vocab), options, patience=60, lasting=True))
    return made


def show(models: Sequence[Mapping[str, Any]], args: argparse.Namespace) -> None:
    title = f"{args.type}, prompt {args.prompt}, {args.threads} threads, {cpu_model()}, {args.rounds} rounds"
    table = Table(title=title)
    for heading in ("model", "phase", "tok/s", "of bandwidth", "peer", "peer tok/s", "ratio", "95% interval"):
        table.add_column(heading, justify="left" if heading in ("model", "phase", "peer") else "right")
    for model in models:
        for phase in ("prefill", "decode"):
            row = model[phase]
            first = [model["model"], phase, f"{row['tok_s']:.1f}", f"{row['share']:.0%}" if "share" in row else ""]
            for peer in row["peers"] or [None]:
                table.add_row(*first, *(_cells(peer) if peer else ()))
                first = [""] * len(first)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _cells(peer: Mapping[str, Any]) -> tuple[str, ...]:
    ratio = peer["ratio"]
    if ratio is None:
        return peer["peer"], "-", "-", "-"
    interval = f"{ratio['low']:.2f} - {ratio['high']:.2f}" if ratio["low"] is not None else "-"
    return peer["peer"], f"{peer['tok_s']:.1f}", f"{ratio['value']:.2f}", interval


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES), metavar="NAME")
    parser.add_argument("--peer", action="append", metavar="NAME[=PYTHON]", help=f"of {', '.join(PEERS)} (all here)")
    parser.add_argument("--type", choices=FORMATS, default="Q8_0", metavar="TYPE", help="of all matrices (Q8_0)")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=256, help="prompt tokens of the prefill figures")
    parser.add_argument("--tokens", type=int, default=24, help="generated tokens of the decode figures")
    parser.add_argument("--level", help="force an instruction-set level of Phaseline")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    models = [measure(name, args) for name in args.models]
    if args.json:
        print(json.dumps({"cpu": cpu_model(), "threads": args.threads, "rounds": args.rounds, "models": models}))
    else:
        show(models, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
