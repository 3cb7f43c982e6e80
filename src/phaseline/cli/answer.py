"""One answer of a loaded model: the loop that streams it, and what is reported about it."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phaseline.engine.engine import Engine, Generation
    from phaseline.engine.types import SamplingParams

_ID = "answer"


def answer(
    engine: "Engine",
    prompt: Sequence[int],
    params: "SamplingParams",
    show: Callable[[str], object],
    *,
    stopped: Callable[[], bool] = lambda: False,
) -> "Generation":
    """Complete `prompt`, handing each piece of text to `show` as it comes.

    `stopped` is asked between the engine's steps; once it says so, the answer ends as it stands (reason ABORT).
    """
    from phaseline.engine.engine import Generation
    from phaseline.engine.types import FinishReason, Request

    generation = Generation(prompt)
    constraint = engine.constrain(params)
    start = time.perf_counter()
    engine.submit(Request(_ID, prompt, params), constraint=constraint)
    while generation.finish_reason is None:
        if stopped():
            engine.abort(_ID)
            generation.finish_reason = FinishReason.ABORT
        for delta in engine.step():
            generation.add(delta, time.perf_counter() - start)
            show(delta.text)
    return generation


def answer_record(generation: "Generation") -> dict[str, Any]:
    """The facts of an answer; times in seconds from its request, null where there is nothing to measure."""
    from phaseline.lab.metrics import request_metrics

    metrics = request_metrics(0.0, generation.token_times_s)
    return {
        "text": generation.text,
        "token_ids": generation.token_ids,
        "prompt_token_ids": generation.prompt_token_ids,
        "finish_reason": generation.finish_reason.value if generation.finish_reason else None,
        "cached_tokens": generation.cached_tokens,
        "ttft_s": metrics.ttft,
        "tpot_s": metrics.tpot,
        "worst_gap_s": metrics.worst_gap,
        "token_times_s": generation.token_times_s,
    }


def summary(generation: "Generation") -> str:
    """One line: lengths, latencies and rates. Prefill's rate is the apparent one: uncached prompt over TTFT."""
    from phaseline.lab.metrics import request_metrics

    metrics = request_metrics(0.0, generation.token_times_s)
    prompt, cached = len(generation.prompt_token_ids), generation.cached_tokens
    reason = generation.finish_reason.value if generation.finish_reason else "unfinished"
    parts = [
        f"prompt {prompt} tokens" + (f" ({cached} cached)" if cached else ""),
        f"output {len(generation.token_ids)} ({reason})",
        f"TTFT {_milliseconds(metrics.ttft)}",
        f"TPOT {_milliseconds(metrics.tpot)}",
        f"worst gap {_milliseconds(metrics.worst_gap)}",
        f"prefill {_rate(prompt - cached, metrics.ttft)}",
        f"decode {_rate(1, metrics.tpot)}",
    ]
    return "[" + " | ".join(parts) + "]"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.3g} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"


def _rate(tokens: int, seconds: float | None) -> str:
    return "-" if not seconds else f"{tokens / seconds:.4g} tok/s"
