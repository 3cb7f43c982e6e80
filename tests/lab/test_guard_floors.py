"""The guard's file of floors: what is written is read, and what is wrong is said."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline.errors import FileFormatError, PhaselineError
from phaseline.lab.guard_floors import Anchor, Floors, floors_from_noise, read_floors, write_floors

shares = st.fixed_dictionaries({"prefill": st.floats(0, 0.99), "decode": st.floats(0, 0.99)})
texts = st.text(st.characters(codec="utf-8"))
figures = st.floats(1e-3, 1e6)


@given(shares, shares | st.just({}), st.none() | st.builds(Anchor, texts, texts, texts, figures, figures))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, floor: dict[str, float], noise: dict[str, float], anchor: Anchor | None
) -> None:
    path = tmp_path_factory.mktemp("floors") / "guard.toml"
    write_floors(path, Floors(floor, noise, anchor))
    found = read_floors(path)
    assert found.floor == pytest.approx(floor, abs=5.1e-5) and found.noise == pytest.approx(noise, abs=5.1e-5)
    if anchor is None or found.anchor is None:
        assert found.anchor is anchor
    else:
        assert (found.anchor.target, found.anchor.date, found.anchor.command) == (
            anchor.target, anchor.date, anchor.command
        )  # fmt: skip
        assert found.anchor.prefill_ms == pytest.approx(anchor.prefill_ms, rel=1e-5)


def test_a_floor_is_the_noise_or_one_percent() -> None:
    assert floors_from_noise({"prefill": 0.004, "decode": 0.03}).floor == {"prefill": 0.01, "decode": 0.03}


def test_a_person_can_read_and_write_it(tmp_path: Path) -> None:
    path = tmp_path / "guard.toml"
    write_floors(path, floors_from_noise({"prefill": 0.004, "decode": 0.0312}))
    assert [line for line in path.read_text().splitlines() if line and not line.startswith("#")] == [
        "[floor_percent]", "prefill = 1.00", "decode = 3.12", "[noise_percent]", "prefill = 0.40", "decode = 3.12"
    ]  # fmt: skip
    path.write_text("[floor_percent]\ndecode = 2\n")
    assert read_floors(path) == Floors({"prefill": 0.01, "decode": 0.02})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("floor = [", "is not TOML"),
        ("[floors]\nprefill = 1", "unknown table 'floors'"),
        ("floor_percent = 3", "gives a number for prefill and decode"),
        ("[floor_percent]\nspeed = 3", "not speed = 3"),
        ("[floor_percent]\nprefill = true", "not prefill = True"),
        ("[floor_percent]\nprefill = 'much'", "not prefill = 'much'"),
        ("[floor_percent]\nprefill = 100", "from 0 to below 100"),
        ("[noise_percent]\ndecode = -1", "from 0 to below 100"),
        ("[floor_percent]\ndecode = nan", "from 0 to below 100"),
        ("anchor = 3", "the anchor has exactly target, date"),
        ("[anchor]\ntarget = 'rev:a'", "the anchor has exactly target, date"),
        ("[anchor]\ntarget=1\ndate=''\ncommand=''\nprefill_ms=1\ndecode_ms=1", "target cannot be 1"),
        ("[anchor]\ntarget=''\ndate=''\ncommand=''\nprefill_ms='1'\ndecode_ms=1", "prefill_ms cannot be '1'"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "guard.toml"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=said):
        read_floors(path)


def test_no_file_to_read_or_to_write(tmp_path: Path) -> None:
    with pytest.raises(PhaselineError, match="cannot read the floors"):
        read_floors(tmp_path / "none.toml")
    with pytest.raises(PhaselineError, match="cannot write the floors"):
        write_floors(tmp_path / "none" / "guard.toml", Floors())
