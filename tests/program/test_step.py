"""Steps: how many rows, which of them get logits, and the lists that executors read."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline.execute.base import step_lists
from phaseline.program.step import Segment, Step, Want


@pytest.mark.parametrize(("want", "wanted"), [(Want.NONE, 0), (Want.LAST, 1), (Want.ALL, 3)])
def test_a_segment_wants_none_one_or_all(want: Want, wanted: int) -> None:
    assert Segment(0, 7, [1, 2, 3], want).wanted == wanted


def test_the_last_row_is_wanted_unless_said_otherwise() -> None:
    assert Segment(0, 0, [1]).want is Want.LAST


segments = st.builds(
    Segment,
    slot=st.integers(0, 100),
    start=st.integers(0, 1000),
    tokens=st.lists(st.integers(0, 50_000), min_size=1, max_size=9),
    want=st.sampled_from(Want),
)


@given(st.lists(segments, max_size=6))
def test_rows_are_concatenated_without_padding(parts: list[Segment]) -> None:
    step = Step(parts)
    tokens, spans, wanted = step_lists(step, 4096)
    assert tokens == [token for part in parts for token in part.tokens]
    assert (len(tokens), len(wanted)) == (step.rows, step.wanted)
    firsts = list(accumulate((len(part.tokens) for part in parts), initial=0))
    assert spans == [
        (part.slot, part.start, first, len(part.tokens)) for part, first in zip(parts, firsts, strict=False)
    ]
    expected = []
    for part, first in zip(parts, firsts, strict=False):
        rows = range(first, first + len(part.tokens))
        expected += {Want.NONE: [], Want.LAST: [rows[-1]], Want.ALL: list(rows)}[part.want]
    assert wanted == expected


def test_an_empty_step_has_no_rows() -> None:
    assert step_lists(Step(()), 1) == ([], [], [])
