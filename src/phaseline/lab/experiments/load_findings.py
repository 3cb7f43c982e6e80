"""What a load found, in words, and its record."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from phaseline.lab.experiments.load_points import keeps_up, llama_bench, points, rate_knee, stream_knee, throughput
from phaseline.lab.experiments.load_runs import Measured
from phaseline.lab.slo import RateFound
from phaseline.lab.summary_checks import cache_hits

_HITS = ("reported", "suspected")  # verdicts on a prefix cache that a reader must know of


@dataclass(frozen=True)
class Told:
    """What is said of the runs; `chosen` is the one that the record's summary is about, None if there is none."""

    sentences: list[str]
    chosen: Measured | None
    facts: Mapping[str, Any] = field(default_factory=dict)


def load_record(runs: Sequence[Measured], told: Told, note: str | None) -> dict[str, Any]:
    """The record: `summary` of the chosen run, a row for each pace, and all traces.

    `runs` tells of each run which `traces` are its own (`first`, `count`), and its summary; `requests` says of each
    trace what was asked. `note`: what is to be said of the requests.
    """
    traces = [trace for one in runs for trace in one.run.traces]
    asked = [request for one in runs for request in one.run.asked]
    listed, first = [], 0
    for one in runs:
        count = len(one.run.ended)
        facts = {"first": first, "count": count, "unfinished": len(one.run.asks) - count}
        listed.append({**one.run.pace.facts(), **facts, "summary": one.summary})
        first += count
    cache = cache_hits(traces, asked)
    sentences = [*told.sentences, *([_sentence(note)] if note else [])]
    told_already = told.chosen is not None and told.chosen.summary["cache"]["verdict"] in _HITS
    if cache["verdict"] in _HITS and not told_already:
        sentences.append(f"Prefix cache hits over all runs {cache['verdict']}: {cache['how']}.")
    record: dict[str, Any] = {
        "finding": " ".join(sentences),
        "summary": told.chosen and told.chosen.summary,
        "results": points(runs),
        "llama_bench": llama_bench([one.run for one in runs]),
        "cache": cache,
        **told.facts,
        "runs": listed,
        "requests": [asdict(request) for request in asked],
        "traces": [trace.to_dict() for trace in traces],
    }
    if runs and not any(one.summary["completed"] for one in runs):
        record["error"] = f"no request was completed: {runs[0].summary['notes'][0]}"
    return record


def describe_paces(runs: Sequence[Measured]) -> Told:
    """Of one pace: what was achieved. Of several: where the knee is."""
    if not runs:
        return Told(["Nothing was measured."], None)
    rows = points(runs)
    if len(rows) == 1:
        return Told(_achieved(rows[0], _typical(runs)), _typical(runs))
    closed = all(one.run.pace.closed for one in runs)
    text, knee, found = _stream_knee(rows) if closed else _rate_knee(rows)
    chosen = _typical([one for one in runs if one.run.pace.label == knee["label"]])
    return Told([text, *_achieved(knee, chosen)], chosen, {"knee": {"label": knee["label"], "found": found}})


def describe_search(runs: Sequence[Measured], found: RateFound | None, target: float) -> Told:
    """The highest rate that keeps the target, or as far as the search came."""
    due = [one for one in runs if not one.run.pace.closed]
    if not due:
        return Told(["No rate was tried."], runs[0] if runs else None)
    if found is None:
        text = f"The search for the highest rate with {target:.0%} of requests within the objectives did not end."
        return Told([text], due[-1])
    chosen = next((one for one in reversed(due) if one.run.pace.rate == found.rate), due[0])
    (row,) = points([chosen])
    facts = asdict(found)
    del facts["finding"]
    return Told([_sentence(found.finding), *_achieved(row, chosen)], chosen, {"search": facts})


def _stream_knee(rows: Sequence[Mapping[str, Any]]) -> tuple[str, Mapping[str, Any], bool]:
    knee, best = stream_knee(rows)
    if knee is rows[-1]:
        return f"Throughput still rose at {knee['label']}, the most tried: there is no knee up to there.", knee, False
    share = throughput(knee) / throughput(best) if throughput(best) else 0.0
    return f"The knee is at {knee['label']}: {share:.0%} of the best throughput, seen at {best['label']}.", knee, True


def _rate_knee(rows: Sequence[Mapping[str, Any]]) -> tuple[str, Mapping[str, Any], bool]:
    kept, lost = rate_knee(rows)
    text = f"Requests were served as fast as they came up to {kept['label']}" if kept else "No rate was kept"
    text += f"; at {lost['label']} only {lost['served_rate']:.3g} a second were." if lost else ": no knee up to there."
    return text, kept or rows[0], lost is not None


def _achieved(row: Mapping[str, Any], one: Measured) -> list[str]:
    """One run in words. `row` is that of its pace."""
    summary = one.summary
    attempted, done, tokens = (
        summary["completed"] + summary["failed"],
        summary["completed"],
        summary["output_throughput"],
    )
    rates = f"{summary['request_throughput']:.3g} requests/s" + (f", {tokens:.4g} output tokens/s" if tokens else "")
    completed = f"{done} of {attempted} requests completed in {summary['duration']:.3g} s, {rates}"
    runs = len(row["seconds"])
    which = f" (the run of median length, of {runs})" if runs > 1 else ""
    told = [_sentence(f"{one.run.pace.label}{which}: {completed}")]
    due = summary["median_ttft_from_due_ms"]
    name, first = ("TTFT from when it was due", due) if due is not None else ("TTFT", summary["median_ttft_ms"])
    times = [(name, first), ("TPOT", summary["median_tpot_ms"]), ("worst gap of all", summary["max_worst_gap_ms"])]
    known = [f"{name} {value:.4g} ms" for name, value in times if value is not None]
    told += [f"Medians: {', '.join(known)}."] if known else []
    told += _intervals(row)
    attained = summary["slo_attainment_from_due"]
    attained = summary["slo_attainment"] if attained is None else attained
    if attained is not None:
        told.append(f"{attained:.0%} of the requests met the objectives, {summary['request_goodput']:.3g} a second.")
    if keeps_up(row) is False:
        told.append(
            f"The server was slower than the requests came: it served {row['served_rate']:.3g} of "
            f"{row['requested_rate']:.3g} a second. The rest queued, and these latencies grow with the run's length."
        )
    return [*told, *(_sentence(note) for note in summary["notes"])]


def _intervals(row: Mapping[str, Any]) -> list[str]:
    """What other runs may bring, where there were several."""
    names = {"output_throughput": "output tokens/s", "median_ttft_ms": "ms TTFT", "median_tpot_ms": "ms TPOT"}
    known = [(name, row["intervals"][key]) for key, name in names.items() if row["intervals"][key]]
    parts = [f"{low:.4g} to {high:.4g} {name}" for name, (low, high) in known]
    return [f"Over {len(row['seconds'])} runs the medians lie in (95% intervals): {', '.join(parts)}."] if parts else []


def _typical(runs: Sequence[Measured]) -> Measured:
    """The run of median duration (the shorter of two): one that really was, with traces of its own."""
    return sorted(runs, key=lambda one: one.run.duration)[(len(runs) - 1) // 2]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
