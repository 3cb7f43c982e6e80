"""The options of `lab load`, in the field's words, and the experiment that they ask for."""

import argparse
import math
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phaseline.cli.lab.common import add_goodput, counts, objectives, system_kind, vocabulary
from phaseline.errors import RequestError

if TYPE_CHECKING:
    from phaseline.lab.experiments.load import Load
    from phaseline.lab.experiments.load_runs import Pace
    from phaseline.lab.experiments.load_source import Source
    from phaseline.lab.systems.base import StreamSystem
    from phaseline.lab.workload import Ramp

DATASETS = ("random", "sharegpt", "mooncake", "azure")


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """What is asked, when, and what is done with the result."""
    asks = parser.add_argument_group("requests")
    asks.add_argument("--dataset-name", choices=DATASETS, default="random", help="random prompts, or a log of traffic")
    asks.add_argument("--dataset-path", type=Path, metavar="FILE", help="the log")
    asks.add_argument("--num-prompts", type=int, metavar="N", help="requests of each run (100)")
    asks.add_argument("--random-input-len", type=int, metavar="N", help="tokens of a random prompt (128)")
    asks.add_argument("--random-output-len", type=int, metavar="N", help="tokens of its answer (64)")
    asks.add_argument("--random-prefix-len", type=int, metavar="N", help="tokens that all prompts begin with (0)")
    asks.add_argument("--random-range-ratio", type=float, default=0.0, metavar="R", help="lengths vary by so much (0)")
    asks.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        help="answers go on to the asked length (yes, but for sharegpt); some servers do not know how",
    )
    asks.add_argument("--num-warmups", type=int, default=1, metavar="N", help="distinct requests sent before (1)")
    asks.add_argument("-p", type=int, metavar="N", help="as in llama-bench: --random-input-len")
    asks.add_argument("-n", type=int, metavar="N", help="as in llama-bench: --random-output-len")
    asks.add_argument("-pg", type=_pair, metavar="P,N", help="as in llama-bench: both")
    asks.add_argument("-d", type=int, metavar="N", help="as in llama-bench, depth: --random-prefix-len")
    asks.add_argument("-r", "--repeats", type=int, metavar="N", help="runs at each pace (1; 5 with -p, -n, -pg or -d)")

    pace = parser.add_argument_group("pace")
    pace.add_argument("--request-rate", type=float, metavar="R", help="a second; inf: all at once (the log's, or inf)")
    pace.add_argument("--ramp", type=_ramp, metavar="R:R:S", help="a rate from the first to the second in S seconds")
    pace.add_argument("--burstiness", type=float, default=1.0, metavar="B", help="1: Poisson, less: bursts, inf: fixed")
    pace.add_argument("--max-concurrency", type=int, metavar="N", help="most streams at once")
    pace.add_argument("--speed", type=float, default=1.0, metavar="X", help="of a log's own pace (1)")
    pace.add_argument("--sweep-concurrency", type=counts, metavar="N,N", help="a run for each number of streams")
    pace.add_argument("--sweep-rate", type=_rates, metavar="R,R", help="a run for each rate")
    pace.add_argument("--slo-search", type=float, metavar="SHARE", help="highest rate with so many within --goodput")
    pace.add_argument(
        "--slo-rates", type=_range, metavar="LOW:HIGH", help="where to search (from one stream's rate on)"
    )
    pace.add_argument("--slo-runs", type=int, default=40, metavar="N", help="most runs of the search (40)")
    add_goodput(pace)

    result = parser.add_argument_group("result")
    result.add_argument("--save-result", action="store_true", help="write the record into a file named by the time")
    result.add_argument("--result-dir", type=Path, default=Path(), metavar="DIR", help="(here)")
    result.add_argument("--result-filename", type=Path, metavar="FILE", help="instead of that name")
    result.add_argument("--export", type=_export_file, metavar="FILE", help="a row for each request: .jsonl or .csv")


def result_file(args: argparse.Namespace) -> Path | None:
    """Where `--save-result` puts the record."""
    if not args.save_result and args.result_filename is None:
        return None
    folder: Path = args.result_dir
    return folder / (args.result_filename or f"phaseline-load-{datetime.now():%Y%m%d-%H%M%S}.json")


def streams_asked(args: argparse.Namespace) -> int | None:
    """The streams that an engine in this process must serve at once; None where that is not told."""
    streams: list[int] = args.sweep_concurrency or ([args.max_concurrency] if args.max_concurrency else [])
    return max(streams, default=1 if _bench(args) else None)


def experiment_of(args: argparse.Namespace) -> "Callable[[StreamSystem], Load]":
    """The experiment for a system, made when its model is there. Raises RequestError for what makes no sense."""
    from phaseline.lab.experiments.load import Load, LoadSearch

    several = [args.sweep_concurrency, args.sweep_rate, args.slo_search]
    if sum(one is not None for one in several) > 1:
        raise RequestError("--sweep-concurrency, --sweep-rate and --slo-search exclude each other")
    rates = {"--request-rate": args.request_rate, "--ramp": args.ramp, "--sweep-rate": args.sweep_rate}
    rates["--slo-search"] = args.slo_search
    given = [name for name, rate in rates.items() if rate is not None]
    if len(given) > 1:
        raise RequestError(f"{' and '.join(given)} exclude each other: each gives the rate")
    common: dict[str, Any] = {
        "repeats": args.repeats or (5 if _bench(args) else 1),
        "warmups": args.num_warmups,
        "objectives": objectives(args),
        "in_process": system_kind(args) == "phaseline",
        "seed": args.seed,
    }
    paces = _paces(args)
    if args.slo_search is None:
        return lambda system: Load(system, _source(args), paces, **common)
    if common["objectives"] is None:
        raise RequestError('--slo-search needs --goodput, for example --goodput "ttft:500 tpot:50"')
    low, high = args.slo_rates or (None, None)
    search = {"target": args.slo_search, "low": low, "high": high, "budget": args.slo_runs}
    return lambda system: LoadSearch(system, _source(args), paces, **common, **search)


def _paces(args: argparse.Namespace) -> "list[Pace]":
    from phaseline.lab.experiments.load_runs import Pace

    logged = args.dataset_name in ("mooncake", "azure")
    rate: float | Ramp | None = args.ramp or args.request_rate
    if rate is None and not (logged and args.max_concurrency is None and args.sweep_concurrency is None):
        rate = math.inf
    cap = args.max_concurrency or (1 if _bench(args) and rate == math.inf else None)
    if args.sweep_concurrency is not None:
        return [Pace(rate, streams, args.burstiness) for streams in sorted(set(args.sweep_concurrency))]
    if args.sweep_rate is not None:
        return [Pace(one, args.max_concurrency, args.burstiness) for one in sorted(set(args.sweep_rate))]
    if args.slo_search is not None:
        return [Pace(1.0, args.max_concurrency, args.burstiness)]
    return [Pace(rate, cap, args.burstiness)]


def _source(args: argparse.Namespace) -> "Source":
    """Raises a PhaselineError if there is no such log, or if it is malformed."""
    from phaseline.lab.experiments.load_source import LogSource, RandomSource
    from phaseline.lab.workload_files import read_azure, read_mooncake, read_sharegpt

    words, seed = vocabulary(args), args.seed
    requests = 100 if args.num_prompts is None else args.num_prompts
    if args.dataset_name == "random":
        if args.dataset_path is not None:
            raise RequestError("--dataset-path needs --dataset-name sharegpt, mooncake or azure")
        pair = args.pg or (None, None)
        return RandomSource(
            1 if _bench(args) and args.num_prompts is None else requests,
            _once(128, random_input_len=args.random_input_len, p=args.p, pg=pair[0]),
            _once(64, random_output_len=args.random_output_len, n=args.n, pg=pair[1]),
            prefix=_once(0, random_prefix_len=args.random_prefix_len, d=args.d),
            range_ratio=args.random_range_ratio,
            vocabulary=words,
            ignore_eos=args.ignore_eos is not False,
            seed=seed,
        )
    if args.dataset_path is None:
        raise RequestError(f"--dataset-name {args.dataset_name} needs --dataset-path")
    if args.dataset_name == "sharegpt":
        log = read_sharegpt(args.dataset_path, requests, context=args.context, seed=seed)
    else:
        read = read_mooncake if args.dataset_name == "mooncake" else read_azure
        log = read(args.dataset_path, requests, context=args.context)
    ignore_eos = args.dataset_name != "sharegpt" if args.ignore_eos is None else args.ignore_eos
    return LogSource(log, speed=args.speed, vocabulary=words, ignore_eos=ignore_eos, seed=seed)


def _bench(args: argparse.Namespace) -> bool:
    """Whether llama-bench's options were used: its runs are of one request, one after another."""
    return any(one is not None for one in (args.p, args.n, args.pg, args.d))


def _once(default: int, **given: int | None) -> int:
    """The one value among options that mean the same. Raises RequestError if they differ."""
    values = {value for value in given.values() if value is not None}
    if len(values) > 1:
        names = ", ".join(f"{'--' if len(name) > 2 else '-'}{name.replace('_', '-')}" for name in given)
        raise RequestError(f"{names} mean the same: give one of them")
    return next(iter(values), default)


def _pair(text: str) -> tuple[int, int]:
    found = counts(text)
    if len(found) != 2:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not a pair of tokens read and generated such as 512,128")
    return found[0], found[1]


def _rates(text: str) -> list[float]:
    return _numbers(text, ",", "rates such as 0.5,1,2")


def _range(text: str) -> tuple[float, float]:
    low, high = _numbers(text, ":", "lowest and highest rate such as 0.5:8", 2)
    return low, high


def _ramp(text: str) -> "Ramp":
    start, end, seconds = _numbers(text, ":", "rates and seconds such as 1:10:30", 3)
    from phaseline.lab.workload import Ramp

    try:
        return Ramp(start, end, seconds)
    except RequestError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _numbers(text: str, separator: str, what: str, number: int | None = None) -> list[float]:
    try:
        found = [float(part) for part in text.split(separator)]
    except ValueError:
        found = []
    if not found or (number is not None and len(found) != number) or not all(0 <= one < math.inf for one in found):
        raise argparse.ArgumentTypeError(f"{text!r:.80} does not give {what}")
    return found


def _export_file(text: str) -> Path:
    path = Path(text)
    if path.suffix not in (".jsonl", ".csv"):
        raise argparse.ArgumentTypeError(f"{text!r:.80} must end in .jsonl or .csv")
    return path
