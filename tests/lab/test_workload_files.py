"""The field's logs: read as published, refused with the line where they are malformed, and never held whole."""

import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline.errors import FileFormatError, PhaselineError, RequestError
from phaseline.lab import bounded_text
from phaseline.lab.workload_files import Log, Logged, estimated_tokens, read_azure, read_mooncake, read_sharegpt

# The first lines of the published logs.
MOONCAKE = """\
{"timestamp": 27482, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]}
{"timestamp": 27482, "input_length": 512, "output_length": 26, "hash_ids": [46]}
{"timestamp": 30535, "input_length": 1053, "output_length": 1, "hash_ids": [0, 773, 774]}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:04.0319600,110,27
"""
HUMAN = {"from": "human", "value": "What is a phase?"}
ANSWER = {"from": "gpt", "value": "Reading or writing."}
Reader = Callable[[Path, int], Log]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def written(content: str | bytes) -> Path:
        path = tmp_path / "log"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return written


Write = Callable[[str | bytes], Path]


def sharegpt(*turns: dict[str, Any], key: str = "conversations") -> dict[str, Any]:
    return {"id": "x", key: list(turns)}


def test_mooncake_as_published(write: Write) -> None:
    first, second, third = read_mooncake(write(MOONCAKE), 10).requests
    assert first == Logged(600, 52, 0.0, (46, 47))
    assert second == Logged(512, 26, 0.0, (46,))
    assert (third.at_s, third.blocks) == (pytest.approx(3.053), (0, 773, 774))


def test_azure_as_published_with_its_line_ends_and_zones(write: Write) -> None:
    log = read_azure(write(AZURE.replace("\n", "\r\n").rstrip()), 10)
    assert [(one.input_tokens, one.output_tokens) for one in log.requests] == [(4808, 10), (3180, 8), (110, 27)]
    assert [one.at_s for one in log.requests] == pytest.approx([0.0, 0.052, 0.052], abs=1e-5)
    later = "\ufeff" + AZURE.replace("2023-11-16 18:17:04.0319600", "2023-11-16 20:17:04+02:00")
    assert read_azure(write(later), 10).requests[2].at_s == pytest.approx(0.02004, abs=1e-5)


def test_azure_is_not_moved_by_the_clocks_of_summer(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    header = AZURE.splitlines()[0]
    path = write(f"{header}\n2024-03-31 01:59:00,1,1\n2024-03-31 03:01:00,1,1\n")
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")  # an hour is skipped between the two lines
        time.tzset()
        log = read_azure(path, 2)
    time.tzset()
    assert log.requests[1].at_s == 3720.0


@pytest.mark.parametrize("key", ["conversations", "conversation"])
@pytest.mark.parametrize("speaker", ["from", "role"])
def test_sharegpt_in_both_spellings(write: Write, key: str, speaker: str) -> None:
    words = {"from": ("from", "value", "human", "gpt"), "role": ("role", "content", "user", "assistant")}[speaker]
    who, what, human, assistant = words
    turns = [{who: "system", what: "Be brief."}, {who: human, what: "Ask"}, {who: assistant, what: "Answer it"}]
    (request,) = read_sharegpt(write(json.dumps([sharegpt(*turns, key=key)])), 5).requests
    assert request == Logged(1, 3, None, None, "Ask")


def test_sharegpt_counts_with_a_tokenizer_if_given_one(write: Write) -> None:
    path = write(json.dumps([sharegpt(HUMAN, ANSWER)]))
    (request,) = read_sharegpt(path, 1, count_tokens=lambda text: len(text.split())).requests
    assert (request.input_tokens, request.output_tokens) == (4, 3)
    assert [estimated_tokens(text) for text in ("", "four", "five!", "ünü")] == [1, 1, 2, 2]


def test_what_cannot_be_asked_is_passed_over_and_counted(write: Write) -> None:
    useless = [[], [HUMAN], [ANSWER, HUMAN], [HUMAN, HUMAN, ANSWER], [HUMAN | {"value": "  "}, ANSWER]]
    log = read_sharegpt(write(json.dumps([sharegpt(*turns) for turns in [*useless, [ANSWER, HUMAN, ANSWER]]])), 10)
    assert (len(log.requests), log.passed_over) == (1, 5)


@pytest.mark.parametrize(("reader", "content"), [(read_mooncake, MOONCAKE), (read_azure, AZURE)])
def test_limit_and_context_choose_the_first_that_fit(write: Write, reader: Any, content: str) -> None:
    path = write(content)
    whole = reader(path, 10).requests
    assert reader(path, 2) == Log(whole[:2], 0)
    needs = [one.input_tokens + one.output_tokens for one in whole]
    fitting = reader(path, 10, context=max(needs) - 1)
    assert fitting.passed_over == 1
    assert list(fitting.requests) == [one for one, need in zip(whole, needs, strict=True) if need < max(needs)]
    with pytest.raises(FileFormatError, match="no request"):
        reader(path, 10, context=5)
    with pytest.raises(RequestError, match="at least 1"):
        reader(path, 0)


def test_sharegpt_draws_evenly_and_repeatably(write: Write) -> None:
    path = write(json.dumps([sharegpt(HUMAN | {"value": str(number)}, ANSWER) for number in range(20)]))
    drawn = [[one.text for one in read_sharegpt(path, 5, seed=seed).requests] for seed in range(100)]
    assert drawn[0] == [one.text for one in read_sharegpt(path, 5, seed=0).requests]
    assert all(len(set(texts)) == 5 for texts in drawn)
    counts = [sum(str(number) in texts for texts in drawn) for number in range(20)]
    assert min(counts) >= 8
    assert max(counts) <= 45  # 25 expected of each
    assert {one.text for one in read_sharegpt(path, 99).requests} == {str(number) for number in range(20)}
    assert read_sharegpt(path, 99, context=10).passed_over == 0


def mooncake_line(**changes: Any) -> str:
    entry = {"timestamp": 27482, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]} | changes
    return json.dumps({key: value for key, value in entry.items() if value != "absent"}) + "\n"


@pytest.mark.parametrize(
    "line",
    [
        *(mooncake_line(**{key: "absent"}) for key in ("timestamp", "input_length", "output_length", "hash_ids")),
        *(mooncake_line(timestamp=time) for time in (-1, "1", True, None, [], float("nan"), 1e400, 10**400)),
        *(
            mooncake_line(**{key: n})
            for key in ("input_length", "output_length")
            for n in (0, -1, 1.0, True, "1", 1 << 40)
        ),
        *(
            mooncake_line(hash_ids=ids)
            for ids in ([], [46], [46, 47, 48], [46, -1], [46, 47.0], [46, True], "46", None)
        ),
        mooncake_line(timestamp=27481),  # before the line above
        "[]\n",
        "7\n",
        '{"timestamp": 27482\n',
        "{} {}\n",
        "[" * 100_000 + "\n",
        '{"timestamp": ' + "9" * 5000 + "}\n",
        "\xff\n",
        " " * bounded_text.MAX_LINE_BYTES + "\n",
    ],
)
def test_a_malformed_mooncake_line_is_refused_with_its_number(write: Write, line: str) -> None:
    path = write((mooncake_line() + "\n").encode() + line.encode("latin-1") + mooncake_line().encode())
    with pytest.raises(FileFormatError, match="line 3: "):
        read_mooncake(path, 10)
    assert len(read_mooncake(path, 1).requests) == 1  # what is not read is not judged


@pytest.mark.parametrize(
    "line",
    [
        "2023-11-16 18:17:04,1",
        "2023-11-16 18:17:04,1,1,1",
        "yesterday,1,1",
        "2023-11-16 18:17:02,1,1",  # before the line above
        ",1,1",
        *(
            f"2023-11-16 18:17:04,{n},1"
            for n in ("", "0", "-1", "1.5", " 1", "1_0", "\u0661", "x", 1 << 40, "9" * 5000)
        ),
        "2023-11-16 18:17:04,1,0",
        '2023-11-16 18:17:04,"1,1',
        '2023-11-16 18:17:04,"1"1,1',
    ],
)
def test_a_malformed_azure_line_is_refused_with_its_number(write: Write, line: str) -> None:
    with pytest.raises(FileFormatError, match="line 3: "):
        read_azure(write("\n".join([*AZURE.splitlines()[:2], line, ""])), 10)


@pytest.mark.parametrize(
    "header", ["", "ContextTokens,TIMESTAMP,GeneratedTokens\n", "TIMESTAMP,ContextTokens\n", "\xff"]
)
def test_an_azure_log_must_have_its_header(write: Write, header: str) -> None:
    with pytest.raises(FileFormatError, match="line 1: "):
        read_azure(write(header.encode("latin-1") + AZURE.encode()[AZURE.index("\n") + 1 :]), 10)


GOOD = json.dumps(sharegpt(HUMAN, ANSWER))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", 1),
        ("{}", 1),
        (f"[\n{GOOD}\n{GOOD}\n]", 3),  # no comma
        (f"[\n{GOOD},\n]", 3),
        (f"[\n{GOOD}\n", 3),
        (f"[\n{GOOD}\n]\n{GOOD}", 4),
        (f"[\n{GOOD},\n\n7]", 4),
        (f"[\n{GOOD},\n\n" + '{"conversations": 7}]', 4),
        (f"[\n{GOOD},\n" + '{"conversations": ["human"]}]', 3),
        (f"[\n{GOOD},\n" + '{"id": "no turns"}]', 3),
        (f"[\n{GOOD},\n" + json.dumps(sharegpt({"from": "human"})) + "]", 3),
        (f"[\n{GOOD},\n" + json.dumps(sharegpt(HUMAN | {"value": 7}, ANSWER)) + "]", 3),
        (f"[\n{GOOD},\n" + json.dumps(sharegpt(HUMAN | {"value": "\ud800"}, ANSWER)) + "]", 3),
        (f"[\n{GOOD},\n" + '{"conversations": [', 3),
        (f"[\n{GOOD},\n" + '{"conversations": NaN}]', 3),
        (f"[\n{GOOD},\n" + '{"a":' * 100_000, 3),
    ],
)
def test_malformed_sharegpt_is_refused_with_the_line_where_it_starts(write: Write, content: str, line: int) -> None:
    with pytest.raises(FileFormatError, match=rf"line {line}: "):
        read_sharegpt(write(content), 10, count_tokens=len)


def test_bytes_that_are_no_text_are_refused(write: Write) -> None:
    with pytest.raises(FileFormatError, match="UTF-8"):
        read_sharegpt(write(f"[{GOOD},\n".encode() + b"\xff]"), 10)


def test_a_conversation_without_end_is_refused_early(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_text, "MAX_ITEM_CHARS", 1000)
    monkeypatch.setattr(bounded_text, "_VIEW_CHARS", 100)
    assert read_sharegpt(write(f"[{GOOD}]"), 1).requests
    with pytest.raises(FileFormatError, match="longer than 1000"):
        read_sharegpt(write("[" + json.dumps(sharegpt(HUMAN | {"value": "x" * 10_000}, ANSWER)) + "]"), 10)


@pytest.mark.parametrize("reader", [read_mooncake, read_azure, read_sharegpt])
def test_what_cannot_be_read_is_a_plain_refusal(tmp_path: Path, reader: Reader) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(PhaselineError, match="cannot read"):
            reader(path, 10)


white = st.text(" \t\r\n", max_size=3)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(st.dictionaries(st.text(), json_values, max_size=3), max_size=6),
    st.data(),
    st.sampled_from([1, 7, 1 << 16]),
)
def test_array_items_are_what_json_reads(
    tmp_path_factory: Any, items: list[Any], data: st.DataObject, view: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "array.json"
    indent = data.draw(st.none() | st.integers(0, 2))
    space = [data.draw(white) for _ in range(2)]
    path.write_text(space[0] + json.dumps(items, indent=indent) + space[1], encoding="utf-8", newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded_text, "_VIEW_CHARS", view)
        assert [item for _, item in bounded_text.array_items(path)] == items


@given(
    st.binary(max_size=200),
    st.integers(0, 400),
    st.integers(0, 400),
    st.sampled_from(["mooncake", "azure", "sharegpt"]),
)
def test_damaged_logs_are_read_or_refused(tmp_path_factory: Any, junk: bytes, start: int, stop: int, kind: str) -> None:
    reader, content = {
        "mooncake": (read_mooncake, MOONCAKE),
        "azure": (read_azure, AZURE),
        "sharegpt": (read_sharegpt, f"[{GOOD},\n{GOOD}\n]"),
    }[kind]
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(content.encode()[:start] + junk + content.encode()[stop:])
    try:
        log = reader(path, 5)
    except FileFormatError as error:
        assert "line " in str(error) or "no request" in str(error)
    else:
        assert all(one.input_tokens >= 1 and one.output_tokens >= 1 for one in log.requests)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "long.json"
    one = json.dumps(sharegpt(HUMAN, {"from": "gpt", "value": "word " * 400}))
    path.write_text("[" + ",\n".join([one] * 4000) + "]")
    tracemalloc.start()
    try:
        assert len(read_sharegpt(path, 10).requests) == 10
        assert tracemalloc.get_traced_memory()[1] < path.stat().st_size / 8
    finally:
        tracemalloc.stop()
