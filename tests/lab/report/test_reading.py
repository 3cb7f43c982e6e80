"""Which files and records are taken, and how the others are refused."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from phaseline.errors import FileFormatError, PhaselineError
from phaseline.lab.report import read_records, report_page
from support.lab_records import KINDS, Record
from support.report_page import Make, put, sections


def test_one_record_a_file_or_json_lines_give_the_same(records: dict[str, Record], tmp_path: Path) -> None:
    some = [records["measure"], records["load"]]
    files = [tmp_path / f"{n}.json" for n in range(2)]
    for file, record in zip(files, some, strict=True):
        file.write_text(json.dumps(record, indent=2), encoding="utf-8")
    lines = tmp_path / "both.jsonl"
    lines.write_text("\ufeff" + "\n".join(map(json.dumps, some)) + "\n\n", encoding="utf-8")
    apart, together = (report_page(read_records(paths)) for paths in (files, [lines]))
    for n, file in enumerate(files, 1):
        apart = apart.replace(str(file), f"{lines}, line {n}")
    assert apart == together


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"model": {}, "ops": [], "phases": {}}', "not a record that can be reported (keys: model, ops, phases)"),
        (b'{"experiment": "astrology", "results": []}', "unknown experiment 'astrology'"),
        (b'{"experiment": ["load"]}', "unknown experiment"),
        (b'{"experiment": "measure"}', "unknown experiment 'measure'"),
        (b"{}", "keys: none"),
        (b"", "not JSON"),
        (b"[]", "a JSON object is expected"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' * 100_000, "nested too deeply"),
        (b'{"x": NaN}', "NaN"),
        (b'{"x": 1e999}', "beyond all numbers"),
        (b'{"x": 123456789012345678901234567890}', "more digits"),
        (b'{"x": "\xff"}', "not UTF-8"),
        (b'{"experiment": "load"}\n{"experiment": "tarot"}\n', "line 2: a record of the unknown experiment 'tarot'"),
        (b'{"experiment": "load"}\n\nnonsense\n', "line 3: not JSON"),
    ],
)
def test_what_is_no_record_is_refused_by_name(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "odd.json"
    file.write_bytes(content)
    with pytest.raises(FileFormatError, match=re.escape(reason)) as refused:
        read_records([file])
    assert str(refused.value).startswith(str(file))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PhaselineError, match="cannot read"):
        read_records([tmp_path / "none.json"])


@pytest.mark.parametrize(
    ("kind", "path", "value", "told"),
    [
        ("measure", ("results", 0, "seconds"), ["fast"], "results[0]: seconds must be a list of numbers above 0"),
        ("measure", ("results", 2, "median_s"), -1.0, "results[2]: median_s must be a number above 0"),
        ("measure", ("results", 1, "phase"), "lunar", "results[1]: phase must be one of prefill, decode, mixed"),
        ("measure", ("results", 1, "tokens"), 2.5, "results[1]: tokens must be a whole number"),
        ("measure", ("results", 0, "limit"), 7, "results[0]: limit must be a text"),
        ("measure", ("results",), [1], "results must be a list of objects"),
        ("measure", ("machine", "ceilings", "read", 0, "bytes_per_s"), None, "bytes_per_s must be a number above 0"),
        ("measure", ("phase_ratios", 0, "ratio"), True, "phase_ratios[0]: ratio must be a number above 0"),
        ("load", ("traces", 3, "sent_ns"), "now", "traces[3]: not a trace"),
        ("load", ("summary", "completed"), "all", "summary: completed must be a whole number"),
        ("interference", ("timelines", 0, "lanes", 1, "ticks"), [None], "ticks must be a list of finite numbers"),
        ("interference", ("results", 0, "clashes", 0, "victims"), 5, "results[0]: clashes[0]"),
        ("chunk", ("results", 0, "size"), 0, "results[0]: size must be a number of tokens above 0"),
        ("guard", ("systems",), "two", "systems must be an object"),
        ("regime", ("finding",), {}, "finding must be a list"),
    ],
)
def test_a_wrong_type_is_refused_with_its_place(
    records: dict[str, Record], page: Make, kind: str, path: tuple[Any, ...], value: Any, told: str
) -> None:
    record = copy.deepcopy(records[kind])
    put(record, path, value)
    with pytest.raises(FileFormatError, match=re.escape(told)):
        page(record)


def test_keys_that_nobody_asks_for_are_nobodys_concern(records: dict[str, Record], page: Make) -> None:
    for kind in KINDS:
        more = copy.deepcopy(records[kind])
        for holder in (more, *more["results"]):
            holder["surprise"] = {"deep": [1, None, "x"]}
        assert sections(page(more)) == sections(page(records[kind]))
