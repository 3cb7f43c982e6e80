"""Records of every kind, made once, and the pages of them."""

import json
from pathlib import Path

import pytest

from phaseline.lab.report import read_records, report_page
from support.html_tree import Node, parse
from support.lab_records import Record, make_records
from support.report_page import Make


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    return make_records(tmp_path_factory.mktemp("records"))


@pytest.fixture
def page(tmp_path: Path) -> Make:
    """The page of some records, as a tree."""

    def make(*some: Record) -> Node:
        file = tmp_path / "records.jsonl"
        file.write_text("".join(json.dumps(record) + "\n" for record in some), encoding="utf-8")
        return parse(report_page(read_records([file])))

    return make
