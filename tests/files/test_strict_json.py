"""JSON from strangers: what is read, and that what is refused is refused quickly and in words."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline.errors import FileFormatError
from phaseline.files.strict_json import MAX_DEPTH, MAX_VALUES, parse_object, read_object

REFUSED = {
    "is not JSON: Expecting": b'{"a": }',
    "is not JSON: 'utf-8' codec": b'{"a": "\xff"}',
    "is not JSON: Unexpected UTF-8 BOM": b'\xef\xbb\xbf{"a": 1}',
    "the key 'a' appears twice": b'{"b": {"a": 1, "c": 2, "a": 1}}',
    "NaN is no number": b'{"a": NaN}',
    "-Infinity is no number": b'{"a": -Infinity}',
    "the number 1e999 is too large": b'{"a": 1e999}',
    "is not JSON: Exceeds the limit": b'{"a": ' + b"9" * 5000 + b"}",
    "holds no JSON object": b"[1, 2]",
    "is not JSON: Extra data": b"{} {}",
    "deeper than 32": b'{"a":' * 40 + b"1" + b"}" * 40,
    "deep": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "more than 1048576 values": b'{"a": [' + b"0," * (MAX_VALUES + 1) + b"0]}",
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused_is_told(message: str) -> None:
    with pytest.raises(FileFormatError, match=r"^here ") as caught:
        parse_object(REFUSED[message], "here")
    if message != "deep":  # by the parser or after it, as the Python has it
        assert message in str(caught.value)


def test_the_deepest_that_is_read() -> None:
    nested: Any = 1
    for _ in range(MAX_DEPTH - 1):
        nested = [nested]
    assert parse_object(json.dumps({"a": nested}).encode(), "here") == {"a": nested}
    with pytest.raises(FileFormatError, match="deeper"):
        parse_object(json.dumps({"a": [nested]}).encode(), "here")


@given(st.dictionaries(st.text(), st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists)))
def test_what_the_json_module_writes_is_read(value: dict[str, Any]) -> None:
    assert parse_object(json.dumps(value).encode(), "here") == value


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(FileFormatError, match="there is no such file"):
        read_object(path)
    path.write_text('{"a": "bc"}')
    assert read_object(path) == {"a": "bc"}
    assert read_object(path, limit=11) == {"a": "bc"}
    with pytest.raises(FileFormatError, match="more than the 10 bytes"):
        read_object(path, limit=10)
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(FileFormatError, match="there is no such file"):  # and no waiting for someone to write
        read_object(tmp_path / "pipe.json")
