"""What the commands' own records become on the page."""

import copy
import re
from pathlib import Path

import pytest

from phaseline.lab.calibration import calibrate
from phaseline.lab.metrics import trace_metrics
from phaseline.lab.report.amounts import amount, figure, seconds, share, shortened, whole
from phaseline.lab.trace import Trace
from support.lab_records import KINDS, Record
from support.report_page import Make, block, sections

PARTS = {  # what each kind has to show beside the glance and its provenance
    "measure": {"phases", "rooflines", "prefill", "decode", "gaps"},
    "prefill": {"phases", "rooflines", "prefill", "gaps"},
    "decode": {"phases", "rooflines", "decode", "gaps"},
    "batch": {"phases", "rooflines", "batch", "gaps"},
    "endtoend": {"endtoend", "gaps"},
    "interference": {"interference", "chunk", "gaps"},
    "chunk": {"interference", "chunk", "gaps"},
    "load": {"load", "gaps"},
    "regime": {"rooflines", "limits"},
    "compare": {"phases", "prefill", "gaps", "compare"},
    "guard": {"guard"},
}
ALL_PARTS = set().union(*PARTS.values()) | {"calibration"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_shows_its_parts_and_names_those_it_lacks(records: dict[str, Record], page: Make, kind: str) -> None:
    tree = page(records[kind])
    shown = sections(tree) - {"glance", "provenance", "absent"}
    assert shown == PARTS[kind]
    assert len(block(tree, "absent").find("li")) == len(ALL_PARTS - shown)
    assert {link.attributes["href"] for link in tree.one("nav").find("a")} == {
        f"#{name}" for name in shown | {"provenance"}
    }


def test_all_together_have_nothing_absent_but_a_calibration(records: dict[str, Record], page: Make) -> None:
    (missing,) = block(page(*records.values()), "absent").find("li")
    assert "Calibration" in missing.text and "--calibrate" in missing.text


def test_the_finding_is_told_in_the_records_own_words(records: dict[str, Record], page: Make) -> None:
    tree = page(*records.values())
    told = [paragraph.text for paragraph in block(tree, "glance").find("p", class_="finding")]
    for record in records.values():
        assert record.get("finding", told[0]) in told


def test_the_phase_table_has_every_row(records: dict[str, Record], page: Make) -> None:
    record = records["measure"]
    heads, *rows = block(page(record), "phases").one("table").table()
    assert len(rows) == len(record["results"])
    for cells, row in zip(rows, record["results"], strict=True):
        shown = dict(zip(heads, cells, strict=True))
        assert (shown["Phase"], shown["Mode"]) == (row["phase"], row["mode"])
        assert shown["Sizetokens"] == whole(row["tokens"] if row["phase"] == "prefill" else row["context"])
        assert shown["Timems"] == figure(row["median_s"] * 1e3)
        assert shown["Ratetok/s"] == figure(row["tok_s"])
        assert shown["WorkGFLOP/s"] == figure(row["flops"] / row["median_s"] / 1e9)
        assert shown["Limit"] == row["limit"]


def test_phase_ratios_are_bars_of_their_length(records: dict[str, Record], page: Make) -> None:
    ratios = records["measure"]["phase_ratios"]
    bars = block(page(records["measure"]), "phases").one("ul", class_="bars").find("li")
    most = max(one["ratio"] for one in ratios)
    for one, bar in zip(ratios, bars, strict=True):
        assert bar.find("b")[0].text == one["mode"] and f"{figure(one['ratio'], 2)}\u00d7" in bar.text
        width = float(re.findall(r"width:([\d.]+)%", str(bar.one("span", class_="fill").attributes["style"]))[0])
        assert width == pytest.approx(100 * one["ratio"] / most, abs=0.1)


def test_points_of_the_roofline_stand_where_they_should(records: dict[str, Record], page: Make) -> None:
    record = records["measure"]
    plot = block(page(record), "rooflines").one("svg", role="img")
    marks = [node for node in plot.find("svg", class_="glyph") if node.find("title")]
    assert len(marks) == len(record["results"])
    places = []
    for mark, row in zip(marks, record["results"], strict=True):
        intensity, speed = row["flops"] / row["bytes"], row["flops"] / row["median_s"]
        assert f"{figure(intensity)} FLOP/B, {figure(speed / 1e9)} GFLOP/s" in mark.one("title").text
        places.append(
            (intensity, float(str(mark.attributes["x"]).rstrip("%")), speed, float(str(mark.attributes["y"])))
        )
    for axis, sign in ((0, 1), (2, -1)):  # higher numbers stand farther right, and farther up
        order = sorted(places, key=lambda place: place[axis])
        assert [place[axis + 1] for place in order] == sorted((p[axis + 1] for p in places), reverse=sign < 0)
    ceilings = record["machine"]["ceilings"]
    for name in ("quant_flops", "float_flops"):
        assert amount(ceilings[name], "FLOP/s") in str(plot.attributes["aria-label"])


def test_curves_have_a_point_and_numbers_for_each_size(records: dict[str, Record], page: Make) -> None:
    record = records["prefill"]
    part = block(page(record), "prefill")
    rows = [row for row in record["results"] if row["phase"] == "prefill"]
    (numbers,) = part.find("table")
    assert [cells[1] for cells in numbers.table()[1:]] == [whole(row["tokens"]) for row in rows]
    assert [cells[2] for cells in numbers.table()[1:]] == [figure(row["median_s"] * 1e3) for row in rows]
    plots = part.find("svg", role="img")
    assert [len([m for m in plot.find("svg", class_="glyph") if m.find("title")]) for plot in plots] == [len(rows)] * 2
    assert "One sample each" in part.text


def test_whole_requests_are_split_into_phases(records: dict[str, Record], page: Make) -> None:
    part = block(page(records["endtoend"]), "endtoend")
    heads, *rows = part.one("table").table()
    assert "Goodputof requests" in heads
    for cells, row in zip(rows, records["endtoend"]["results"], strict=True):
        times = [figure(row[key] * 1e3) for key in ("ttft_s", "tpot_s", "worst_gap_s", "e2e_s")]
        assert cells[:6] == [whole(row["prompt"]), whole(row["output"]), *times]
        assert cells[6] == f"{share(row['prefill_share'])} | {share(row['decode_share'])}"


def test_the_timeline_has_every_tick_and_block(records: dict[str, Record], page: Make) -> None:
    found = records["interference"]["timelines"]
    drawn = block(page(records["interference"]), "interference").find("div", class_="timeline")
    assert [one.one("h4").text for one in drawn] == [one["setting"] for one in found]
    earliest = -0.3 * max(one["first_token_s"] for one in found)
    for one, shown in zip(found, drawn, strict=True):
        lanes = [node for node in shown.find("g") if node.find("text", class_="lane")]
        for lane, expected in zip(lanes, one["lanes"], strict=True):
            assert lane.one("text", class_="lane").text == expected["name"]
            ticks = sum(str(path.attributes["d"]).count("M") for path in lane.find("path", class_="ticks"))
            assert ticks == sum(tick >= earliest for tick in expected["ticks"])
            assert len(lane.find("rect", class_="prefill")) == len(expected["prefill"])
        assert len(shown.find("rect", class_="gap")) == sum(not lane["prefill"] for lane in one["lanes"])


def test_the_frontier_joins_only_what_no_other_beats(records: dict[str, Record], page: Make) -> None:
    record = copy.deepcopy(records["chunk"])
    points = [(8, 0.05, 3.0), (32, 0.1, 2.0), (64, 0.3, 2.5), (128, 0.4, 1.0)]  # 64 is beaten by 32
    record["frontier"] = [{"size": s, "worst_gap_s": gap, "ttft_s": ttft} for s, gap, ttft in points]
    plot = next(p for p in block(page(record), "chunk").find("svg", role="img") if "Frontier" in str(p.attributes))
    (line,) = (path for path in plot.find("path", class_="line") if "decode" in path.classes)
    assert str(line.attributes["d"]).count("L") == 2
    assert {"8", "32", "64", "128"} <= {note.text for note in plot.find("text", class_="note")}


def test_gaps_end_at_the_worst_one(records: dict[str, Record], page: Make) -> None:
    record = records["measure"]
    numbers = block(page(record), "gaps").one("table").table()[1:]
    rows = [row for row in record["results"] if row["phase"] == "decode"]
    for cells, row in zip(numbers, rows, strict=True):
        gaps = [gap for trace in row["traces"] for gap in trace_metrics(Trace.from_dict(trace)).gaps if gap > 0]
        assert cells[1] == whole(len(gaps)) and cells[-1] == figure(max(gaps) * 1e3)
        assert (cells[4] == "\u2013") == (len(gaps) < 100)  # no p99 of fewer


def test_the_load_summary_has_the_fields_keys(records: dict[str, Record], page: Make) -> None:
    summary = records["load"]["summary"]
    part = block(page(records["load"]), "load")
    table = {cells[0]: cells[1:] for cells in part.one("table").table()}
    for name, key in (("TTFT, from sending", "ttft"), ("TPOT", "tpot"), ("end to end", "e2el")):
        assert table[name] == [figure(summary[f"{which}_{key}_ms"]) for which in ("mean", "median", "p99")]
    assert summary["itl_convention"] in part.text
    chosen = next(run for run in records["load"]["runs"] if run["summary"] == summary)
    requests = part.one("div", class_="requests")
    mine = records["load"]["traces"][chosen["first"] :][: chosen["count"]]
    waits = [trace_metrics(Trace.from_dict(trace)).ttft for trace in sorted(mine, key=lambda trace: trace["sent_ns"])]
    shown = [rect.one("title").text.split(",")[0] for rect in requests.find("rect", class_="prefill")]
    assert shown == [f"TTFT {seconds(wait)}" for wait in waits]


def test_limits_come_with_their_evidence(records: dict[str, Record], page: Make) -> None:
    part = block(page(records["regime"]), "limits")
    claims = part.find("div", class_="claim")
    for shown, row in zip(claims, records["regime"]["results"], strict=True):
        assert shown.one("h4").text.startswith(row["label"]) and row["limit"] in shown.one("h4").text
        assert [item.text for item in shown.one("ul").find("li")] == row["evidence"]
        ops = [op for op in records["regime"]["ops"] if op["label"] == row["label"]]
        assert len(shown.one("table").table()) == 1 + len(ops)


def test_a_comparison_shows_each_system_against_the_first(records: dict[str, Record], page: Make) -> None:
    record = records["compare"]
    part = block(page(record), "compare")
    reference, other = record["standings"]
    names = [text.text for text in part.find("text", class_="lane")]
    assert names == [f"{shortened(other['system'])}, {phase}" for phase in ("prefill", "decode")]
    value = figure(other["prefill_of_reference"]["value"], 3)
    assert f"{value}\u00d7 as fast" in str(part.one("svg", role="img").attributes["aria-label"])
    assert reference["system"] in part.one("figcaption").text


def test_a_calibration_is_shown_and_lost_events_are_shouted(records: dict[str, Record], page: Make) -> None:
    calibration = calibrate(seconds=0.2, streams=2)
    good, bad = (records["load"] | {"calibration": calibration | {"counts_exact": c}} for c in (True, False))
    tree = page(good)
    error = calibration["error_ms"]
    assert block(tree, "calibration").one("table").table()[1][1:] == [
        figure(error[key]) for key in ("p50", "p99", "max")
    ]
    assert not tree.find("p", class_="warning")
    assert "LOST" in page(bad).one("p", class_="warning").text


def test_partial_and_failed_records_say_so(records: dict[str, Record], page: Make) -> None:
    told = page(records["load"] | {"partial": True, "error": "the server went away"}).find("p", class_="warning")
    assert ["interrupted" in one.text for one in told] == [True, False] and "went away" in told[1].text


def test_what_could_not_be_measured_is_told(records: dict[str, Record], page: Make) -> None:
    record = copy.deepcopy(records["prefill"])
    record["results"][1] |= {"seconds": [], "median_s": None, "spread_s": None, "tok_s": None, "error": "HTTP 500"}
    part = block(page(record), "phases")
    assert len(part.one("table").table()) == len(record["results"])  # the heads, and all rows but one
    assert part.one("ul", class_="notes").text == f"prefill tokens {record['results'][1]['tokens']}: HTTP 500"


def test_provenance_names_command_machine_and_file(records: dict[str, Record], page: Make, tmp_path: Path) -> None:
    first, second = (block(page(records["measure"], records["prefill"]), mark) for mark in ("R1", "R2"))
    record = records["measure"]
    assert record["command"] in first.text and record["machine"]["cpu"] in first.text and record["date"] in first.text
    assert f"{tmp_path / 'records.jsonl'}, line 1" in first.text
    assert second.find("a", href="#R1")  # the same model is not told twice
