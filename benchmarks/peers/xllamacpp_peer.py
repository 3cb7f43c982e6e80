"""llama.cpp from the `xllamacpp` wheel, built for AVX2. It is taken at its own word: its server's timings, no HTTP."""

import json
import urllib.request
from collections.abc import Sequence

import xllamacpp
from serving import Generate, Times, serve


def load(model: str, threads: int, context: int) -> tuple[Generate, str]:
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_gpu_layers = 0
    params.n_ctx, params.n_parallel = context, 1
    params.warmup = params.fit_params = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)

    def generate(prompt: Sequence[int], tokens: int) -> Times:
        body = {
            "prompt": list(prompt),
            "n_predict": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        header = {"Content-Type": "application/json"}
        request = urllib.request.Request(server.listening_address + "/completion", json.dumps(body).encode(), header)
        with urllib.request.urlopen(request, timeout=600) as answer:
            timings = json.load(answer)["timings"]
        assert timings["prompt_n"] == len(prompt), "it did not read the whole prompt"
        first, each = timings["prompt_ms"] / 1e3, timings["predicted_ms"] / 1e3 / timings["predicted_n"]
        return [first + each * i for i in range(timings["predicted_n"])]

    return generate, f"xllamacpp {xllamacpp.__version__}"


serve(load)
