"""`phaseline explain --hardware`: the paper calculator, for models and hardware that need not be here."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phaseline.errors import RequestError

if TYPE_CHECKING:
    from rich.table import Table

    from phaseline.lab.shapes import Shape

_WIDTH = 120  # of the tables where no terminal sets one
_CONTEXT, _BATCHES = 8192, (1, 4, 16, 64, 256)
_SUMS = ("params_active", "experts", "experts_active", "kv_bytes_per_token", "query_group")  # for --params alone
_OPTIONS = ("count", "compute", "launch", "weight_bits", "params", *_SUMS)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that only the calculator takes."""
    group = parser.add_argument_group("paper calculator (MODEL may be a Hugging Face config.json, or kimi-k3)")
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


def refuse_without_hardware(args: argparse.Namespace) -> None:
    """RequestError for what only `--hardware` makes sense of."""
    from phaseline.lab.known_shapes import KNOWN

    for name in _OPTIONS:
        if getattr(args, name) is not None:
            raise RequestError(f"{_flag(name)} needs --hardware")
    if args.model in KNOWN:
        raise RequestError(f"of {args.model} the shape alone is known: say on what hardware, with --hardware")
    if args.model is None:
        raise RequestError("say which model: MODEL is missing")
    if args.batch is not None and len(args.batch) > 1:
        raise RequestError(f"batch = {','.join(map(str, args.batch))}: several need --hardware")


def run(args: argparse.Namespace) -> int:
    """Print the bounds, or with `--json` the record."""
    from phaseline.cli.facts import check_out, emit
    from phaseline.execute.host import cpu_model, usable_cores
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
    host = {"cpu": cpu_model(), "cores": usable_cores()}
    record = {"model": model, **provenance(host, {}), **estimate(shape, hardware, case)}
    if not args.json:
        _print(record)
    emit(args, record)
    return 0


def _shape(args: argparse.Namespace) -> tuple["Shape", dict[str, Any]]:
    """The model's shape, and what the record says of the model."""
    from phaseline.files.strict_json import read_object
    from phaseline.lab.hf_config import shape_from_config
    from phaseline.lab.known_shapes import KNOWN
    from phaseline.lab.shapes import shape_from_params, shape_from_program

    if (args.model is None) == (args.params is None):
        raise RequestError("say which model: MODEL, or --params and what belongs to it, but not both")
    element = {"bf16": 2, "f32": 4}[args.kv_type]
    if args.params is not None:
        sums = {name: value for name in _SUMS if (value := getattr(args, name)) is not None}
        bits = 16 if args.weight_bits is None else args.weight_bits
        shape = shape_from_params(args.params, weight_bits=bits, kv_element_bytes=element, **sums)
        return shape, {"name": shape.name}
    for name in _SUMS:
        if getattr(args, name) is not None:
            raise RequestError(f"{_flag(name)} belongs to --params; MODEL says it by itself")
    if args.model in KNOWN:
        shape = KNOWN[args.model](kv_element_bytes=element, weight_bits=args.weight_bits)
        return shape, {"name": args.model}
    if args.model.endswith(".json"):
        config = read_object(Path(args.model))
        shape = shape_from_config(config, args.model, kv_element_bytes=element, weight_bits=args.weight_bits)
        return shape, {"name": args.model, "arch": config["model_type"]}
    from phaseline.cli.facts import read_model

    facts, program = read_model(args.model, args.weights)
    shape = shape_from_program(program, args.model, kv_element_bytes=element, weight_bits=args.weight_bits)
    return shape, facts


def _natural_type(shape: "Shape", peaks: Mapping[str, float]) -> str:
    """bf16 where the hardware is known for it; on this machine what its kernels use for such weights."""
    if "bf16" in peaks:
        return "bf16"
    return "quant" if shape.row.bytes < 2 * shape.row.params else "f32"


def _print(record: Mapping[str, Any]) -> None:
    from phaseline.cli.show import Screen

    screen = Screen(_WIDTH)
    for line in _heading(record):
        screen.prose(line)
    screen.print(_steps(record["steps"]))
    for line in _lines(record):
        screen.prose(line)
    if record["experts"]:
        screen.prose(f"\n{_shares(record['experts'])}")
        screen.print(_experts(record["experts"]))
    screen.prose("\nassumed:")
    for text in record["assumptions"]:
        screen.prose(f"- {text}")
    screen.prose(f"\nfinding: {record['finding']}")


def _heading(record: Mapping[str, Any]) -> list[str]:
    from phaseline.cli.show import si

    shape, hardware, compute = record["shape"], record["hardware"], record["case"]["compute"]
    bits = 8 * shape["weight_bytes"] / shape["params"]
    peak, read, memory = (si(x) for x in (hardware["peaks"][compute], hardware["bandwidth"], hardware["memory"]))
    return [
        f"{record['model']['name']}: {si(shape['weight_bytes'])}B of weights, {bits:.3g} bits each; "
        f"a row multiplies {si(shape['params_per_row']).strip()} of {si(shape['params']).strip()} parameters",
        *([f"bytes by format: {_formats(shape['formats'])}"] if shape["formats"] else ()),
        f"{hardware['count']} x {hardware['name']}: {peak}FLOP/s {compute}, {read}B/s, {memory}B",
    ]


def _formats(formats: Mapping[str, Mapping[str, float]]) -> str:
    from phaseline.cli.show import si

    return ", ".join(f"{name} {si(w['bytes'])}B for {si(w['params']).strip()} weights" for name, w in formats.items())


def _steps(steps: Sequence[Mapping[str, Any]]) -> "Table":
    from phaseline.cli.show import figure

    table = _bare_table("phase")
    headers = ("rows", "weights\nFLOP/B", "products\nms", "\nlimit", "attention\nms", "\nlimit")
    for header in (*headers, "step\nms, at least", "\ntok/s, at most"):
        table.add_column(header, justify="left" if "limit" in header else "right", no_wrap=True)
    table.add_column("fits")
    for step in steps:
        attention = step["attention_s"]
        table.add_row(
            step["phase"],
            str(step["rows"]),
            figure(step["product_flops_per_byte"], 3),
            _ms(step["products_s"]),
            step["product_limit"],
            "unknown" if attention is None else _ms(attention),
            step["attention_limit"],
            _ms(step["step_s"]) + " (launch)" * step["launch_bound"],
            figure(step["tok_s"], 3),
            "yes" if step["fits"] else "no",
        )
    return table


def _lines(record: Mapping[str, Any]) -> list[str]:
    from phaseline.cli.show import figure, si

    context, kv, floor = record["case"]["context"], record["kv"], record["decode_floor"]
    shape, intensity = record["shape"], record["attention_intensity"]
    experts = f"; the routed experts' from {record['critical_batch_experts']:.0f}" if record["experts"] else ""
    counted = "unknown" if intensity["decode_counted"] is None else figure(intensity["decode_counted"], 3)
    lines = [
        f"critical batch: from {record['critical_batch']:.0f} rows on, weight products are compute-bound{experts} "
        "(peak / bandwidth x bytes per parameter / 2)",
        f"attention at context {context}: {figure(intensity['prefill'])} FLOP/B in prefill, "
        f"{intensity['decode']:.3g} in decode whatever the batch (S T / (S + T) x query heads per key head, two-byte "
        f"elements; counted over what this model stores: {counted})",
    ]
    if record["largest_batch"] is not None:
        fixed = f", {si(kv['fixed_bytes'])}B whatever its length" if kv["fixed_bytes"] else ""
        lines.append(
            f"state: {si(kv['bytes_per_position'])}B a position{fixed}, {si(kv['bytes_per_stream'])}B a stream; "
            f"largest batch that fits: {record['largest_batch']}"
        )
    return [
        *lines,
        f"decode floor: reading {si(shape['weight_bytes_per_row'])}B of weights takes {_ms(floor['seconds'])} ms; one "
        f"stream gets at most {figure(floor['tok_s'])} tok/s, {figure(floor['tok_s_at_context'])} at this context",
    ]


def _shares(experts: Mapping[str, Any]) -> str:
    from phaseline.cli.show import si

    shared, routed = si(experts["shared_bytes"]), si(experts["routed_bytes"])
    return (
        f"experts: a row reads {shared}B that all rows share, and {routed}B of its {experts['active']} experts of "
        f"{experts['experts']}: {experts['shared_fraction']:.0%} is shared, and chunking saves more than that only "
        "where rows share experts"
    )


def _experts(experts: Mapping[str, Any]) -> "Table":
    from phaseline.cli.show import si

    table = _bare_table()
    for header in ("rows", "distinct experts\nexpected", "\nat most", "weights\nB", "\nB a row", "saved by\nchunking"):
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


def _bare_table(*columns: str) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(*columns, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _ms(seconds: float) -> str:
    from phaseline.cli.show import figure

    return figure(seconds * 1e3, 3)
