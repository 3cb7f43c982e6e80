"""Records: provenance, strict JSON, and files that are whole or absent."""

import json
import math
import os
import resource
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import phaseline
from phaseline.errors import PhaselineError
from phaseline.lab.records import provenance, to_json, write_record

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writing beyond `size` bytes fails, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_provenance_names_who_where_and_when() -> None:
    machine, build = {"cpu": "one", "cores": 2}, {"level": "avx2", "threads": 2}
    facts = json.loads(to_json(provenance(machine, build)))
    assert (facts["version"], facts["machine"], facts["build"]) == (phaseline.__version__, machine, build)
    assert datetime.fromisoformat(facts["date"]).utcoffset() is not None
    assert {"command", "python", "platform"} <= facts.keys()


@given(st.dictionaries(st.text(), plain, max_size=4))
def test_json_is_strict_and_keeps_all_that_is_finite(record: dict[str, object]) -> None:
    def finite(value: object) -> object:
        if isinstance(value, dict):
            return {key: finite(item) for key, item in value.items()}
        if isinstance(value, list):
            return [finite(item) for item in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    line = to_json(record)
    assert "\n" not in line
    assert json.loads(line, parse_constant=refuse_constant) == finite(record)


def test_numpy_scalars_are_numbers_and_other_objects_are_refused() -> None:
    assert json.loads(to_json({"a": np.float32(0.5), "b": np.int64(3), "c": (np.float64("nan"),)})) == {
        "a": 0.5,
        "b": 3,
        "c": [None],
    }
    with pytest.raises(TypeError, match="plain data"):
        to_json({"a": object()})


def test_a_record_replaces_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_record(path, {"a": 1})
    write_record(path, {"b": 2})
    assert json.loads(path.read_text()) == {"b": 2}
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    write_record(tmp_path / "link.json", {"a": 1})
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text()) == {"a": 1}


def test_a_full_disk_leaves_the_old_record_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_record(path, {"a": 1})
    with largest_file(1000), pytest.raises(PhaselineError, match=r"cannot write the record to .*run\.json"):
        write_record(path, {"text": "x" * 5000})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("name", ["missing/run.json", "plain/run.json", "folder", "n" * 300])
def test_a_place_that_cannot_hold_it_is_named(tmp_path: Path, name: str) -> None:
    tree(tmp_path, {"plain": "", "folder/inside": ""})
    with pytest.raises(PhaselineError, match="cannot write the record to"):
        write_record(tmp_path / name, {})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder", "plain"]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_record(pipe, {"a": 1})
        assert json.loads(os.read(reader, 100)) == {"a": 1}
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
