"""`phaseline explain --hardware`: the paper calculator, for models and hardware that need not be here."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phaseline.errors import FileFormatError, PhaselineError, RequestError

if TYPE_CHECKING:
    from rich.table import Table

    from phaseline.lab.shapes import Shape

_WIDTH = 120  # of the tables where no terminal sets one
_MOST_CONFIG = 1 << 22  # bytes
_CONTEXT, _BATCHES = 8192, (1, 4, 16, 64, 256)
_SUMS = ("params_active", "experts", "experts_active", "kv_bytes_per_token", "query_group")  # for --params alone
OPTIONS = ("count", "compute", "launch", "weight_bits", "params", *_SUMS)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that only the calculator takes."""
    group = parser.add_argument_group("paper calculator (MODEL may be a config.json as Hugging Face models have it)")
    group.add_argument("--hardware", metavar="NAME", help="h100, h200, a100, tpu-v5e, or this: bounds on such chips")
    group.add_argument("--count", type=int, metavar="N", help="chips that share the work (1)")
    group.add_argument("--compute", metavar="TYPE", help="of the arithmetic: bf16, int8, fp8; on this: f32, quant")
    group.add_argument("--weight-bits", type=float, metavar="N", help="per weight (as the model has them)")
    group.add_argument("--launch", type=float, metavar="MS", help="least time of any step (none)")
    group.add_argument("--params", type=float, metavar="N", help="instead of MODEL: all parameters, e.g. 30e9")
    group.add_argument("--params-active", type=float, metavar="N", help="parameters that one row multiplies (all)")
    group.add_argument("--experts", type=int, metavar="N", help="routed experts of a layer")
    group.add_argument("--experts-active", type=int, metavar="N", help="experts that one row chooses")
    group.add_argument("--kv-bytes-per-token", type=float, metavar="N", help="keys and values of one position")
    group.add_argument("--query-group", type=float, metavar="N", help="query heads that share a key head (1)")


def run(args: argparse.Namespace) -> int:
    """Print the bounds, or with `--json` the record."""
    from phaseline.cli.facts import check_out, emit
    from phaseline.lab.estimate import Case, estimate
    from phaseline.lab.hardware import hardware_named
    from phaseline.lab.records import provenance

    check_out(args)
    if args.ops:
        raise RequestError("--ops lists a program's operations; with --hardware the whole step is bounded")
    shape, model = _shape(args)
    chip = hardware_named(args.hardware, shape.row.bytes)
    hardware = chip.times(1 if args.count is None else args.count)
    case = Case(
        context=args.context if args.context is not None else min(_CONTEXT, shape.context or _CONTEXT),
        batches=args.batch or _BATCHES,
        chunk=args.chunk,
        compute=args.compute or _natural_type(shape, hardware.peaks),
        launch=(args.launch or 0.0) / 1e3,
        memory=args.memory,
    )
    found = estimate(shape, hardware, case)
    record = {"model": model, **provenance(hardware.record(), {}), **found}
    if not args.json:
        _print(record)
    emit(args, record)
    return 0


def _shape(args: argparse.Namespace) -> tuple["Shape", dict[str, Any]]:
    """The model's shape, and what the record says of the model."""
    from phaseline.lab.hf_config import shape_from_config
    from phaseline.lab.shapes import shape_from_params, shape_from_program

    if (args.model is None) == (args.params is None):
        raise RequestError("say which model: MODEL, or --params and what belongs to it, but not both")
    if args.params is not None:
        sums = {name: value for name in _SUMS if (value := getattr(args, name)) is not None}
        bits = 16 if args.weight_bits is None else args.weight_bits
        shape = shape_from_params(args.params, weight_bits=bits, **sums)
        return shape, {"name": shape.name}
    for name in _SUMS:
        if getattr(args, name) is not None:
            raise RequestError(f"--{name.replace('_', '-')} belongs to --params; MODEL says it by itself")
    element = {"bf16": 2, "f32": 4}[args.kv_type]
    if args.model.endswith(".json"):
        config = _read_config(Path(args.model))
        shape = shape_from_config(config, args.model, kv_element_bytes=element, weight_bits=args.weight_bits)
        return shape, {"name": args.model, "arch": config["model_type"]}
    from phaseline.cli.facts import read_model

    facts, program = read_model(args.model)
    shape = shape_from_program(program, args.model, kv_element_bytes=element, weight_bits=args.weight_bits)
    return shape, facts


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise PhaselineError(f"no file {str(path)!r}")
    if path.stat().st_size > _MOST_CONFIG:
        raise FileFormatError(f"{path} has more than {_MOST_CONFIG} bytes: no config.json is so large")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise FileFormatError(f"{path} holds no JSON object")
    return config


def _natural_type(shape: "Shape", peaks: Mapping[str, float]) -> str:
    """bf16 where the hardware is known for it; on this machine what its kernels use for such weights."""
    if "bf16" in peaks:
        return "bf16"
    return "quant" if shape.row.bytes < 2 * shape.row.params else "f32"


def _print(record: Mapping[str, Any]) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False, markup=False)
    for line in _heading(record):
        console.print(line, soft_wrap=True)
    console.print(_steps(record))
    for line in _lines(record):
        console.print(line, soft_wrap=True)
    if record["experts"]:
        console.print(_experts(record["experts"]))
    console.print("assumed:", soft_wrap=True)
    for text in record["assumptions"]:
        console.print(f"  - {text}", soft_wrap=True)
    console.print(f"finding: {record['finding']}", soft_wrap=True)


def _heading(record: Mapping[str, Any]) -> list[str]:
    from phaseline.cli.facts import si

    shape, hardware, compute = record["shape"], record["hardware"], record["case"]["compute"]
    bits = 8 * shape["weight_bytes"] / shape["params"]
    held = f"{si(shape['weight_bytes'])}B of weights ({bits:.3g} bits each)"
    active = shape["params_per_row"]
    peak, read, memory = (si(x) for x in (hardware["peaks"][compute], hardware["bandwidth"], hardware["memory"]))
    return [
        f"{record['model']['name']}: {held}; a row multiplies {si(active)}parameters".replace("  ", " "),
        f"{hardware['count']} x {hardware['name']}: {peak}FLOP/s {compute}, {read}B/s, {memory}B ({hardware['source']})",
    ]


def _steps(record: Mapping[str, Any]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("phase")
    for header in ("rows", "weights\nFLOP/B", "products\nms", "limit", "attention\nms", "limit", "step at least\nms"):
        table.add_column(header, justify="left" if header == "limit" else "right", no_wrap=True)
    table.add_column("tok/s\nat most", justify="right", no_wrap=True)
    table.add_column("fits")
    for step in record["steps"]:
        attention = step["attention_s"]
        table.add_row(
            step["phase"],
            str(step["rows"]),
            f"{step['product_flops_per_byte']:.3g}",
            _ms(step["products_s"]),
            step["product_limit"],
            "unknown" if attention is None else _ms(attention),
            step["attention_limit"] or "",
            _ms(step["step_s"]) + (" (launch)" if step["launch_bound"] else ""),
            f"{step['tok_s']:.4g}",
            "yes" if step["fits"] else "no",
        )
    return table


def _lines(record: Mapping[str, Any]) -> list[str]:
    from phaseline.cli.facts import si

    context, kv, floor = record["case"]["context"], record["kv"], record["decode_floor"]
    shape, intensity, most = record["shape"], record["attention_intensity"], record["largest_batch"]
    critical = f"critical batch: {record['critical_batch']:.0f} rows make weight products compute-bound"
    if record["experts"]:
        critical += f", {record['critical_batch_experts']:.0f} those of the routed experts"
    lines = [
        f"{critical} (peak / bandwidth x bytes per parameter / 2)",
        f"attention at context {context}: {intensity['prefill']:.4g} FLOP/byte in prefill, {intensity['decode']:.3g} in "
        f"decode whatever the batch (S T / (S + T) x {shape['query_group']:g} query heads per key head)",
    ]
    if most is not None:
        lines.append(
            f"keys and values: {si(kv['bytes_per_position'])}B a position, {si(kv['bytes_per_stream'])}B a stream; "
            f"largest batch that fits: {most}"
        )
    return [
        *lines,
        f"decode floor: reading {si(shape['weight_bytes_per_row'])}B of weights takes {_ms(floor['seconds'])} ms: at most "
        f"{floor['tok_s']:.4g} tok/s for one stream, {floor['tok_s_at_context']:.4g} at this context",
    ]


def _experts(experts: Mapping[str, Any]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from phaseline.cli.facts import si

    title = (
        f"a row reads {si(experts['shared_bytes'])}B that all rows share and {si(experts['routed_bytes'])}B of its "
        f"{experts['active']} of {experts['experts']} experts: {experts['shared_fraction']:.0%} shared"
    )
    table = Table(title=title, title_justify="left", title_style="", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    headers = ("rows in a chunk", "distinct experts\nexpected", "at most", "weights\nB", "B a row", "saved by\nchunking")
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    for row in experts["rows"]:
        table.add_row(
            str(row["rows"]),
            f"{row['distinct']:.1f}",
            str(row["most"]),
            si(row["bytes"]),
            si(row["bytes"] / row["rows"]),
            f"{row['amortisable']:.1%}",
        )
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:.0f}"
