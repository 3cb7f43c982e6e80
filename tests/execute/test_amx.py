"""The level amx where the processor has none: its instructions trap and are emulated; the tests are the kernels'."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phaseline import _native

TESTS = Path(__file__).parents[1]
SOME = ["execute/test_linear_kernels.py", "execute/test_expert_kernels.py", "execute/test_same_bits.py"]
# Codes and scales of each kind, whole blocks and halves; gates; experts; whole models, threads and chunks.
WHICH = (
    "several_outputs and (Q4_0-96 or Q4_1-96 or Q5_1-32 or Q8_0-96 or Q2_K-256 or Q4_K-256 or Q6_K-512 or IQ3_S-256 "
    "or IQ4_XS-512 or MXFP4-96) or gate_after and Q6_K and SILU or share_one_input or super_blocks or mixed-bf16-33"
)


@pytest.mark.skipif("amx" in _native.levels(), reason="this machine has AMX: every test of a kernel takes it")
@pytest.mark.skipif("avx512" not in _native.levels(), reason="the level amx needs AVX-512 besides")
def test_the_kernels_tests_pass_with_emulated_tiles() -> None:
    plugins = ["-p", "no:cacheprovider", "-p", "no:faulthandler", "-p", "support.tiles"]  # the handler of traps is ours
    command = [sys.executable, "-m", "pytest", "-q", "-x", *plugins, "-k", WHICH, *SOME]
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        command, cwd=TESTS, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
