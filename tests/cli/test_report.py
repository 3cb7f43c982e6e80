"""`phaseline report`: from records that commands wrote to one page."""

import json
from pathlib import Path

import pytest

from phaseline.cli.main import main
from support.command import Run
from support.html_tree import parse


@pytest.fixture(scope="module")
def record(phaseline: Run, plain: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("records") / "endtoend.json"
    options = ["--prompts", "8", "--outputs", "4", "--repeats", "2"]
    assert phaseline("lab", "endtoend", plain, *options, "--out", str(out)).returncode == 0
    return out


def test_a_page_of_a_record(phaseline: Run, record: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = phaseline("report", str(record), "--out", str(out))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{out}: 1 record, {len(out.read_bytes()) / 1e3:.0f} kB\n"
    assert json.loads(record.read_text())["finding"] in parse(out.read_text(encoding="utf-8")).text


def test_the_page_has_a_name_of_its_own_where_none_is_given(
    record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(record), str(record)]) == 0
    assert capsys.readouterr().out.startswith("report.html: 2 records, ")
    assert parse((tmp_path / "report.html").read_text(encoding="utf-8")).one("title")


def test_a_page_needs_nothing_but_itself(phaseline: Run, record: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    phaseline("report", str(record), "--out", str(out))
    tree = parse(out.read_text(encoding="utf-8"))
    links = {str(node.attributes[name]) for node in tree.walk() for name in ("href", "src") if name in node.attributes}
    assert all(link.startswith("#") or link == "data:," for link in links)
    assert not tree.find("script")
    assert "url(" not in tree.one("style").text and "@import" not in tree.one("style").text
    (policy,) = (meta for meta in tree.find("meta") if meta.attributes.get("http-equiv") == "Content-Security-Policy")
    assert str(policy.attributes["content"]).startswith("default-src 'none'")


def test_a_record_is_not_overwritten(phaseline: Run, record: Path) -> None:
    before = record.read_bytes()
    done = phaseline("report", str(record), "--out", str(record))
    assert done.returncode == 2 and "is one of the records" in done.stderr
    assert record.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "reason"), [("{}", "not a record that can be reported"), ("page", "not JSON"), (None, "cannot read")]
)
def test_what_is_no_record_is_refused_in_one_line(
    phaseline: Run, record: Path, tmp_path: Path, content: str | None, reason: str
) -> None:
    odd, out = tmp_path / "odd.json", tmp_path / "page.html"
    if content is not None:
        odd.write_text(content)
    done = phaseline("report", str(record), str(odd), "--out", str(out))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert str(odd) in done.stderr and reason in done.stderr
    assert not out.exists()


def test_a_page_that_has_no_folder_is_refused(phaseline: Run, record: Path, tmp_path: Path) -> None:
    done = phaseline("report", str(record), "--out", str(tmp_path / "none" / "page.html"))
    assert done.returncode == 2 and "there is no folder" in done.stderr


def test_a_file_is_needed(phaseline: Run) -> None:
    done = phaseline("report")
    assert done.returncode == 2 and "FILE" in done.stderr
