"""Phaseline: an inference engine that runs prefill and decode each near its own limit, and a lab that proves it.

from phaseline import load, SamplingParams
engine = load("smollm2")
print(engine.generate("The capital of France is", SamplingParams(max_tokens=8)).text)
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from phaseline.engine.engine import Engine, Generation
    from phaseline.engine.load import load
    from phaseline.engine.types import Grammar, Request, SamplingParams

__all__ = ["Engine", "Generation", "Grammar", "Request", "SamplingParams", "__version__", "load"]

_HOMES = {"Engine": "engine", "Generation": "engine", "load": "load"} | dict.fromkeys(
    ("Grammar", "Request", "SamplingParams"), "types"
)


def __getattr__(name: str) -> Any:
    # The engine's rooms are opened on first use, so that `import phaseline` and the lab's pure parts stay light.
    if name not in _HOMES:
        raise AttributeError(f"module 'phaseline' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"phaseline.engine.{_HOMES[name]}"), name)
