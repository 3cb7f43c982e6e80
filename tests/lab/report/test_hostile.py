"""Records that mean harm, or nonsense."""

import copy
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from phaseline.errors import FileFormatError
from phaseline.lab.report import report_page
from phaseline.lab.report.fields import Fields
from phaseline.lab.report.reading import kind_of
from phaseline.lab.report.record import Record as Read
from support.html_tree import parse
from support.lab_records import KINDS, Record
from support.report_page import HOSTILE, Make, paths, poison, put


def test_hostile_texts_stay_texts(records: dict[str, Record], page: Make) -> None:
    """Every text of every record, and the names of what is described, try to become something else."""
    calm, wild = page(*records.values()), page(*(poison(record) for record in records.values()))
    assert {node.tag for node in wild.walk()} <= {node.tag for node in calm.walk()}
    names = [{name for node in tree.walk() for name in node.attributes} for tree in (calm, wild)]
    assert names[1] <= names[0] and "onerror" not in names[1]
    assert "<script>win=1</script>" in wild.text and "&amp;{{}}" in wild.text
    assert not set("\u202e\ud800\x00") & set(wild.text)
    assert not [node for node in wild.walk() if "win=1" in (node.attributes.get("href") or "")]
    styles = {str(node.attributes["style"]) for node in wild.find() if "style" in node.attributes}
    assert all(re.fullmatch(r"(width:[\d.]+%|padding-left:\d+px)", style) for style in styles)


ODD = st.one_of(
    st.sampled_from(
        [None, True, 0, -1, 1e-31, 1e30, 10**18, -1e30, "", "x", HOSTILE, [], {}, [[]], [None], [0], [1e30]]
    ),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**40), 2**40),
)


@settings(max_examples=150)
@given(data=st.data())
def test_whatever_stands_where_it_is_drawn_or_refused(records: dict[str, Record], data: st.DataObject) -> None:
    record = copy.deepcopy(records[data.draw(st.sampled_from(KINDS))])
    for _ in range(data.draw(st.integers(1, 3))):
        places = list(paths(record))
        put(record, data.draw(st.sampled_from(places)), data.draw(ODD))
    refuses_or_draws(record)


def test_counts_beyond_all_reason_take_neither_time_nor_memory(records: dict[str, Record]) -> None:
    for record in records.values():
        huge = copy.deepcopy(record)
        for at in [path for path in paths(huge) if path[-1] in ("prompt_tokens", "output_tokens", "tokens", "count")]:
            put(huge, at, 10**18)
        for traces in (huge.get("traces", []), *(row.get("traces", []) for row in huge["results"])):
            for trace in traces:
                trace["events"] = [[t_ns, channel, 10**18] for t_ns, channel, _ in trace["events"]]
        refuses_or_draws(huge)


def refuses_or_draws(record: Record) -> None:
    try:
        page = report_page([Read(1, "odd.json", kind_of(record, "odd.json"), Fields(record, "odd.json"))])
    except FileFormatError as error:
        assert str(error).startswith("odd.json")
    else:
        assert "nan" not in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL).lower().split()
        parse(page)
