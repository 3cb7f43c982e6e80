"""Our own engine among the systems of the lab's commands: what only it can tell."""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, NamedTuple

from phaseline.cli.lab.common import needed_model, system_kind
from phaseline.cli.options import load_options
from phaseline.errors import RequestError

if TYPE_CHECKING:
    from phaseline.lab.experiments.own import Own
    from phaseline.lab.systems.base import StreamSystem
    from phaseline.lab.systems.phaseline import PhaselineStreams


class Variant(NamedTuple):
    """What is different, in words, and as options of `load`."""

    label: str
    options: Mapping[str, Any]


VARIANTS = {
    "eager": Variant("a call per operation", {"mode": "eager"}),
    "q8_0": Variant("weights as q8_0", {"weights": "q8_0"}),
    "bf16": Variant("weights as bf16", {"weights": "bf16"}),
    "f32-state": Variant("state as f32", {"kv_type": "f32"}),
}


def own_engine(args: argparse.Namespace, system: "StreamSystem") -> "Own | None":
    """The engine behind `system`, priced, if it is ours. Raises UnsupportedError for the reference executor."""
    if system_kind(args) != "phaseline":
        return None
    from phaseline.lab.systems.phaseline import PhaselineStreams

    assert isinstance(system, PhaselineStreams)  # the kind says so
    return _priced(system, args, args.mode or "chunk", args.kv_type)


def variant_engines(
    args: argparse.Namespace, names: Sequence[str], opened: ExitStack
) -> dict[str, "tuple[PhaselineStreams, Own]"]:
    """The same model loaded otherwise, by the label of what is different; closed with `opened`.

    A variant that is what the options ask for already is left out. Raises RequestError for an unknown one, and
    CapacityError where it does not fit.
    """
    from phaseline.engine.load import load
    from phaseline.lab.systems.phaseline import PhaselineStreams

    found = {}
    for name in names:
        if name not in VARIANTS:
            raise RequestError(f"variant {name!r} is unknown; supported: {', '.join(VARIANTS)}")
        options, (label, others) = load_options(args), VARIANTS[name]
        if all(options.get(key) == value for key, value in others.items()):
            continue
        options |= others
        engine = opened.enter_context(closing(load(needed_model(args), **options)))
        streams = PhaselineStreams(engine)
        found[label] = (streams, _priced(streams, args, options.get("mode", "chunk"), options["kv_type"]))
    return found


def _priced(streams: "PhaselineStreams", args: argparse.Namespace, mode: str, kv_type: str) -> "Own":
    from phaseline.execute.native import KV_TYPES
    from phaseline.lab.experiments.own import Own

    return Own(streams.stepwise(), mode=mode, chunk=args.chunk, kv_bytes=KV_TYPES[kv_type].itemsize)


def fitting(sizes: list[int] | None, usual: tuple[int, ...], own: "Own | None", spare: int) -> list[int]:
    """The sizes asked for; else the usual ones, of which our engine's context holds each with `spare` positions more.

    At least one remains, cut short if it must be.
    """
    if sizes is not None:
        return sizes
    if own is None:
        return list(usual)
    most = own.system.context - spare
    return [size for size in usual if size <= most] or [max(1, most)]
