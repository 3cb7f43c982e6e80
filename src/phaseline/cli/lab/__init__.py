"""`phaseline lab`: one command for each experiment."""

import argparse

from phaseline.cli.lab import batch, chunk, compare, decode, endtoend, interference, load, prefill, regime


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `lab` and its experiments."""
    parser = subparsers.add_parser(
        "lab",
        help="experiments on any engine: ours, llama.cpp, transformers, any OpenAI-compatible server",
        description="Experiments that measure prefill and decode of a system: our engine on MODEL, a server by its "
        "--base-url, or another engine in this process by --system.",
    )
    experiments = parser.add_subparsers(metavar="EXPERIMENT", required=True)
    for experiment in (prefill, decode, batch, endtoend, interference, chunk, compare, load, regime):
        experiment.add_parser(experiments)
