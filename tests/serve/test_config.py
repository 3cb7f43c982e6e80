"""Settings that make no sense are refused by name."""

from typing import Any

import pytest

from phaseline.errors import RequestError
from phaseline.serve.config import ServeConfig


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("port", value) for value in (-1, 65536)],
        *[(name, value) for name in ("max_queue", "max_body", "max_bodies", "max_unread") for value in (0, -1)],
        *[(name, value) for name in ("request_timeout", "idle_timeout", "ttft_objective") for value in (0.0, -1.0)],
        *[(f"{what}_timeout", float("nan")) for what in ("request", "idle", "step", "drain")],
        ("drain_timeout", -1.0),
        ("step_timeout", 1.5),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"^{name} = "):
        ServeConfig("model", **{name: value})


def test_an_empty_key_is_refused() -> None:
    with pytest.raises(RequestError, match="API key is empty"):
        ServeConfig("model", api_keys=("key", ""))


@pytest.mark.parametrize(
    ("model", "name"),
    [("smollm2", "smollm2"), ("/models/qwen3-0.6b.gguf", "qwen3-0.6b"), ("/models/Qwen3-0.6B/", "Qwen3-0.6B")],
)
def test_the_model_is_called_after_its_file(model: str, name: str) -> None:
    assert ServeConfig(model).name == name
