"""`phaseline serve`: an OpenAI-compatible server."""

import argparse
import os

from phaseline.cli.options import add_model, add_serving_options, serving_options


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `serve` and its options."""
    parser = subparsers.add_parser(
        "serve",
        help="serve a model over HTTP, as OpenAI's clients expect it",
        description="Serve a model over HTTP, as OpenAI's clients expect it. The first line on standard output says "
        "where. SIGTERM or Ctrl-C let the answers under way end; a second one ends at once.",
    )
    add_model(parser)
    group = parser.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1: this machine alone)")
    group.add_argument("--port", type=int, metavar="N", default=8000, help="0: any that is free (8000)")
    group.add_argument(
        "--served-model-name",
        "--alias",
        dest="served_name",
        metavar="NAME",
        help="what clients call the model (the name of its file or folder)",
    )
    group.add_argument(
        "--api-key",
        action="append",
        metavar="KEY",
        help="ask for this key; may be given several times (PHASELINE_API_KEY, else none)",
    )
    group.add_argument(
        "--allowed-host",
        action="append",
        metavar="NAME",
        help="answer to this name as well, as a proxy may pass it on; may be given several times (without keys and for "
        "this machine alone: to localhost and IP addresses; else to any name)",
    )
    group.add_argument("--max-queue", type=int, metavar="N", help="requests that may wait; 429 beyond (256)")
    group.add_argument(
        "--ttft-objective", type=float, metavar="S", help="refuse what can't start to answer within S (all are taken)"
    )
    group.add_argument("--request-timeout", type=float, metavar="S", help="most for a whole request (600)")
    group.add_argument("--idle-timeout", type=float, metavar="S", help="most for a silent connection (60)")
    group.add_argument(
        "--step-timeout", type=float, metavar="S", help="most for one step; an engine that hangs is started again (600)"
    )
    group.add_argument("--drain-timeout", type=float, metavar="S", help="for answers under way when stopped (30)")
    group.add_argument(
        "--restart", action=argparse.BooleanOptionalAction, default=True, help="start an engine again that died (yes)"
    )
    group.add_argument(
        "--ceilings",
        action="store_true",
        help="measure at the start, in about a second, what this machine allows each phase; the live page shows it",
    )
    group.add_argument(
        "--log-requests",
        action="store_true",
        help="write a line for each request that has ended to standard error, without a word of what was said (no)",
    )
    group.add_argument(
        "--check-pages", action="store_true", help="look after every step whether a page is lost (slow: for tests)"
    )
    add_serving_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    from phaseline.serve.config import ServeConfig
    from phaseline.serve.server import run as serve

    settings = (
        "served_name",
        "host",
        "port",
        "max_queue",
        "ttft_objective",
        "request_timeout",
        "idle_timeout",
        "step_timeout",
        "drain_timeout",
        "restart",
        "ceilings",
        "log_requests",
        "check_pages",
    )
    given = {name: value for name in settings if (value := getattr(args, name)) is not None}
    keys = args.api_key or [key for key in [os.environ.get("PHASELINE_API_KEY")] if key]
    names = tuple(args.allowed_host or ())
    serve(ServeConfig(args.model, serving_options(args), api_keys=tuple(keys), allowed_hosts=names, **given))
    return 0
