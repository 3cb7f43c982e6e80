"""Instruction-set levels: only who asks for one runs its instructions."""

import re
import shutil
import subprocess

import pytest

from phaseline import _native


def _told(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not (shutil.which("readelf") and shutil.which("objdump")), reason="needs binutils")
def test_loading_the_module_runs_baseline_instructions_alone() -> None:
    path = _native.__file__
    section = re.search(r"\.init_array +\S+ +(\w+) +\w+ +(\w+)", _told("readelf", "-SW", path))
    assert section
    start, size = (int(part, 16) for part in section.groups())
    relocated = re.findall(r"^(\w+) +\w+ +R_X86_64_RELATIVE +(\w+)", _told("readelf", "-rW", path), re.MULTILINE)
    first = [int(code, 16) for place, code in relocated if start <= int(place, 16) < start + size]
    assert first
    for code in first:
        bounds = (f"--start-address={code}", f"--stop-address={code + 4096}")
        body = _told("objdump", "-d", "--no-show-raw-insn", *bounds, path).partition("\tret")[0]
        assert not re.findall(r"\tv\w+ .*%[xyz]mm.*", body)
