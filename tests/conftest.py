"""Shared fixtures: the real model, fetched once through the package's own door, and texts to feed it."""

import os

# Two threads of a BLAS for products of a few rows cost more than they bring, and fight with the kernels for cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from phaseline.errors import PhaselineError
from phaseline.files.zoo import pull

settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct Q4_1 in the user's cache; skipped, with the reason, where it cannot be had."""
    try:
        return pull("smollm2")
    except PhaselineError as error:
        pytest.skip(f"the real model is not available: {error}")


@pytest.fixture(scope="session")
def prose() -> str:
    """A few thousand words of plain English that every checkout has."""
    return (Path(__file__).parents[1] / "LICENSE").read_text(encoding="utf-8")
