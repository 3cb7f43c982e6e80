"""A process that serves the guard: one build of Phaseline, asked by lines of JSON on standard input.

The guard runs this file, by its path, on builds that may be older than it is: it uses nothing but their public door.
The first line names the model. It answers with what was loaded, then each ask with the tokens and their times.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Slowed:
    """An executor whose steps take longer by a share, for a guard to find out.

    A step is prefill if it computes several rows of a sequence, a row that nobody reads, or a first one; all others are
    decode. What lies between two decode steps (sampling, scheduling) is slowed with them.
    """

    def __init__(self, executor: Any, prefill: float = 0.0, decode: float = 0.0) -> None:
        self.program, self.page_size = executor.program, executor.page_size
        self.copy_pages, self.close = executor.copy_pages, executor.close
        self._executor = executor
        self._prefill, self._decode = prefill, decode
        self._ended = 0.0

    def forward(self, step: Any, pages: Any) -> Any:
        prompt = any(len(s.tokens) > 1 or not s.wanted or not s.start for s in step.segments)
        began = time.perf_counter() if prompt else self._ended
        logits = self._executor.forward(step, pages)
        now = time.perf_counter()
        end = now + (now - began) * (self._prefill if prompt else self._decode)
        while now < end:  # a sleep would last tens of microseconds longer than asked
            now = time.perf_counter()
        self._ended = now
        return logits


def main() -> int:
    """Serve until standard input ends."""
    lines = (json.loads(line) for line in sys.stdin)
    try:
        serve, said = _load(**next(lines))
    except Exception as error:  # whatever it is, the guard is to say it
        said = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(said), flush=True)
    if "error" in said:
        return 2
    for ask in lines:
        try:
            said = serve(**ask)
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), flush=True)
    return 0


def _load(
    model: str, options: Mapping[str, Any], slow: Mapping[str, float]
) -> tuple[Callable[..., dict[str, Any]], dict[str, Any]]:
    import phaseline

    engine = phaseline.load(model, **options)
    if any(slow.values()):
        engine.executor = Slowed(engine.executor, **slow)

    def serve(prompt: str | Sequence[int], max_tokens: int) -> dict[str, Any]:
        params = phaseline.SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        sent = time.monotonic_ns()
        made = engine.generate(prompt, params)
        return {
            "sent_ns": sent,
            "end_ns": time.monotonic_ns(),
            "times_s": made.token_times_s,
            "token_ids": made.token_ids,
            "prompt_tokens": len(made.prompt_token_ids),
            "cached_tokens": made.cached_tokens,
        }

    return serve, {"file": phaseline.__file__, "version": phaseline.__version__}


if __name__ == "__main__":
    sys.exit(main())
