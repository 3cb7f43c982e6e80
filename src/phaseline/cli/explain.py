"""`phaseline explain`: a model's program, priced, and whether it fits."""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from phaseline.cli import calculate
from phaseline.cli.options import (
    MODEL_HELP,
    add_common_options,
    add_memory_options,
    add_output_options,
    sampling_params,
)
from phaseline.errors import CapacityError, RequestError

if TYPE_CHECKING:
    from rich.table import Table

    from phaseline.program.ir import Program
    from phaseline.program.ops import Cost, Op, Work

_WIDTH = 110  # of the table where no terminal sets one
_MOST_STREAMS = 1 << 16

Block = tuple[list[int], list[int]]  # numbers of layers, and of operations


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `explain` and its options."""
    parser = subparsers.add_parser(
        "explain",
        help="show what a step does, what it costs, and whether the model fits",
        description="Show a model's operations with their FLOPs and bytes, for the last chunk of a prompt and for the "
        "decode step that follows it, and whether the model fits this memory. Weights count as the file stores them. "
        "With --hardware: what each step takes at least on such chips.",
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", help=MODEL_HELP)
    group = parser.add_argument_group("step")
    group.add_argument("--context", type=int, metavar="N", help="prompt tokens (512, --hardware 8192, or what fits)")
    group.add_argument(
        "--batch", type=_counts, metavar="N", help="streams that the decode step serves (1); with --hardware also 4,256"
    )
    add_memory_options(group)
    parser.add_argument("--ops", action="store_true", help="show each layer by itself, even where many are alike")
    add_common_options(parser, "walk: a chunk of one; otherwise, as threads, numerics and seed, without a price")
    calculate.add_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the priced program and what fits, or with `--json` the record; with `--hardware` bounds instead."""
    sampling_params(args)  # refuses a seed that no request could have
    if args.threads is not None:
        _check("threads", args.threads, 512)
    if args.hardware is not None:
        return calculate.run(args)
    from phaseline.cli.facts import check_out, emit, read_model

    calculate.refuse_without_hardware(args)
    (args.batch,) = args.batch or (1,)
    check_out(args)
    model, program = read_model(args.model, args.weights)
    longest = program.context - 1  # the decode step needs one more position
    if args.context is None:
        args.context = min(512, longest)
    if args.mode == "walk":
        args.chunk = 1
    _check("chunk", args.chunk, 1 << 30)
    _check("batch", args.batch, _MOST_STREAMS)
    _check("context", args.context, longest)
    phases = _phases(program, args)
    record = {
        "model": model,
        **{name: getattr(args, name) for name in ("chunk", "batch", "context", "kv_type")},
        "ops": [row for phase in phases for row in phase.rows(program)],
        "phases": {phase.name: phase.total() for phase in phases},
        "fit": _fit(program, args),
    }
    if not args.json:
        _print(record, program, phases, every=args.ops)
    emit(args, record)
    return 0


@dataclass(frozen=True)
class Phase:
    """One step of a program: the cost of each operation, and of all."""

    name: str
    work: "Work"
    costs: Sequence["Cost"]
    whole: "Cost"

    def op_rows(self, op: "Op") -> int:
        """Rows that an operation computes in this step."""
        from phaseline.program.ir import Rows

        return self.work.rows if op.outputs()[0].rows is Rows.TOKENS else self.work.wanted

    def rows(self, program: "Program") -> Iterator[dict[str, Any]]:
        """The record's row of each operation; `layer` is null outside the layers."""
        for op, layer, cost in zip(program.ops, program.layers, self.costs, strict=True):
            place = {"op": op.describe(), "layer": layer if layer >= 0 else None, "phase": self.name}
            yield {**place, "rows": self.op_rows(op), **asdict(cost)}

    def total(self) -> dict[str, Any]:
        """The record of the whole step, with its arithmetic intensity."""
        return {"rows": self.work.rows, **asdict(self.whole), "flops_per_byte": self.whole.flops / self.whole.bytes}


def _counts(text: str) -> tuple[int, ...]:
    """Whole numbers from a text such as 4,256."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is no whole number, nor several such as 4,256") from None


def _check(name: str, value: int, high: int) -> None:
    if not 1 <= value <= high:
        raise RequestError(f"{name} = {value}: it must be a whole number from 1 to {high}")


def _phases(program: "Program", args: argparse.Namespace) -> list[Phase]:
    from phaseline.execute.native import KV_TYPES
    from phaseline.program.cost import decode_work, op_costs, prefill_work, step_cost

    element = KV_TYPES[args.kv_type].itemsize
    rows = min(args.chunk, args.context)
    prefill = prefill_work(rows, start=args.context - rows, kv_bytes=element)
    decode = decode_work(args.context, streams=args.batch, kv_bytes=element)
    return [
        Phase(name, work, op_costs(program, work), step_cost(program, work))
        for name, work in (("prefill", prefill), ("decode", decode))
    ]


def _fit(program: "Program", args: argparse.Namespace) -> dict[str, Any]:
    """Whether `batch` streams of `context` positions have room, and what would have; bytes and counts."""
    from phaseline.engine.memory import fit

    try:
        room = fit(program, memory=args.memory, kv_type=args.kv_type, max_running=1, chunk=args.chunk)
    except CapacityError as error:
        return {"fits": False, "reason": str(error)}
    streams = room.streams(args.context)
    state = [
        {
            "layers": group.spec.layers,
            "reaches_back": program.context - oldest if (oldest := group.spec.oldest(program.context)) else None,
            "bytes_per_position": group.page_bytes // room.page_size,
            "bytes_per_stream": group.page_bytes * room.held(group, args.context),
        }
        for group in room.groups
    ]
    return {
        "fits": streams >= args.batch,
        "memory": room.memory,
        "weights": room.weights,
        "state": state,
        "bytes_per_stream": room.stream(args.context),
        "longest_context": room.context,
        "most_streams": streams,
    }


def _print(record: Mapping[str, Any], program: "Program", phases: Sequence[Phase], *, every: bool) -> None:
    from phaseline.cli.show import Screen, headline, si
    from phaseline.lab.sparsity import reading

    screen = Screen(_WIDTH)
    screen.prose(headline(record["model"]))
    blocks = list(_blocks(program, phases, every=every))
    for phase in phases:
        rows, whole = phase.work.rows, phase.whole
        screen.prose(f"\n{phase.name}: {rows} row{'s' * (rows > 1)} at context {record['context']}")
        screen.print(_table(program, phase, blocks))
        cost = f"{si(whole.flops)}FLOP over {si(whole.bytes)}B"
        screen.prose(f"{phase.name}: {cost}, {whole.flops / whole.bytes:.3g} FLOP/byte")
        if sparse := reading(program, phase.work):
            screen.prose(f"{phase.name} of {sparse.sentence()}")
    screen.prose(f"\n{_verdict(record)}")


def _table(program: "Program", phase: Phase, blocks: Sequence[Block]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_footer=True)
    table.add_column("operation", footer="the whole step")
    headers = ("rows", "FLOP", "weights B", "state B")
    for header, footer in zip(headers, _cells(phase.work.rows, phase.whole), strict=True):
        table.add_column(header, footer=footer, justify="right", no_wrap=True)
    for layers, ops in blocks:
        inside = layers[0] >= 0
        if inside:
            table.add_row(f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]}-{layers[-1]}, each")
        for i in ops:
            op = program.ops[i]
            text = _without_layer(op.describe(), layers[0]) if len(layers) > 1 else op.describe()
            table.add_row("  " * inside + text, *_cells(phase.op_rows(op), phase.costs[i]))
    return table


def _cells(rows: int, cost: "Cost") -> list[str]:
    from phaseline.cli.show import si

    return [si(amount) for amount in (rows, cost.flops, cost.weight_bytes, cost.state_bytes)]


def _blocks(program: "Program", phases: Sequence[Phase], *, every: bool) -> Iterator[Block]:
    """Layers with the operations of their first: neighbours that differ in nothing but their number stand together."""

    def kind(block: tuple[int, list[int]]) -> object:
        layer, ops = block
        if every:
            return layer, ops
        return [(_without_layer(program.ops[i].describe(), layer), [p.costs[i] for p in phases]) for i in ops]

    runs = groupby(range(len(program.ops)), key=program.layers.__getitem__)
    for _, alike in groupby([(layer, list(ops)) for layer, ops in runs], key=kind):
        blocks = list(alike)
        yield [layer for layer, _ in blocks], blocks[0][1]


def _without_layer(text: str, layer: int) -> str:
    """Names such as blk.7.attn_q with a star for their layer's number."""
    return re.sub(rf"(?<=\.){layer}(?=\.)", "*", text)


def _state(group: Mapping[str, Any]) -> str:
    layers, back, stream = (
        group["layers"],
        group["reaches_back"],
        f"{group['bytes_per_stream'] / 2**20:.1f} MiB a stream",
    )
    head = f"state of {layers} layer{'s' * (layers > 1)}"
    if back == 0:  # recurrent: as much at any length
        return f"{head}, carried on: {stream}"
    kept = "every position" if back is None else f"the latest {back} positions"
    return f"{head}, {kept}: {group['bytes_per_position'] / 2**10:.1f} KiB a position, {stream}"


def _verdict(record: Mapping[str, Any]) -> str:
    """What each state group keeps, and whether all fits."""
    fit, batch, context = record["fit"], record["batch"], record["context"]
    if "reason" in fit:
        return f"does not fit: {fit['reason']}"
    asked = f"{batch} {'stream' if batch == 1 else 'streams'} of {context} positions"
    verdict = (
        f"{asked}: {'fits' if fit['fits'] else 'does not fit'} {fit['memory'] / 2**30:.2f} GiB with weights of "
        f"{fit['weights'] / 2**20:.1f} MiB and {fit['bytes_per_stream'] / 2**20:.1f} MiB of state per stream; "
        f"room for a context of up to {fit['longest_context']}, or {fit['most_streams']} streams of {context}"
    )
    return "\n".join([*map(_state, fit["state"]), verdict])
