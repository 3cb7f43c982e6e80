"""The loop of a peer's process: asks by lines of JSON on standard input, their tokens' times on standard output.

As `phaseline.cli.guard_worker` does for builds of Phaseline. A peer may live in another environment, so this file and
those beside it use nothing of Phaseline.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Times = list[float]  # seconds from the ask to each token
Generate = Callable[[Sequence[int], int], Times]  # a prompt's ids, tokens wanted
Load = Callable[[str, int, int], tuple[Generate, str]]  # a .gguf path, threads, context: and a version


def serve(load: Load) -> None:
    """Serve until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever the peer prints is no answer
    lines = (json.loads(line) for line in sys.stdin)
    asked = next(lines)
    generate, version = load(asked["model"], asked["options"]["threads"], asked["options"]["context"])
    print(json.dumps({"file": os.path.abspath(sys.argv[0]), "version": version}), file=answers)
    for ask in lines:
        print(json.dumps(_answer(generate, **ask)), file=answers)


def _answer(generate: Generate, prompt: Sequence[int], max_tokens: int) -> dict[str, Any]:
    sent = time.monotonic_ns()
    times = generate(prompt, max_tokens)
    facts = {"prompt_tokens": len(prompt), "cached_tokens": 0, "token_ids": []}
    if len(times) != max_tokens:
        return {"error": f"{len(times)} tokens came of {max_tokens}"}
    return {"sent_ns": sent, "end_ns": time.monotonic_ns(), "times_s": times, **facts}


def stamped(tokens: Iterable[object]) -> Times:
    """The times at which they come."""
    start = time.perf_counter()
    return [time.perf_counter() - start for _ in tokens]
