"""llama.cpp as a black box: its server in this process, asked over HTTP."""

import json
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class LlamaCpp:
    def __init__(self, address: str) -> None:
        self._address = address

    def greedy(self, prompt: Sequence[int], tokens: int) -> list[int]:
        """The next `tokens` ids, each the most likely."""
        reply = self._ask(prompt, n_predict=tokens, ignore_eos=True, return_tokens=True, cache_prompt=False)
        return [int(id) for id in reply["tokens"]]

    def top(self, prompt: Sequence[int], k: int) -> tuple[list[int], list[float]]:
        """The k most likely next ids and their log-probabilities, largest first. A prefix read before is reused."""
        reply = self._ask(prompt, n_predict=1, n_probs=k, cache_prompt=True)
        best = reply["completion_probabilities"][0]["top_logprobs"]
        return [int(b["id"]) for b in best], [float(b["logprob"]) for b in best]

    def tokenize(self, text: str, *, special: bool = True, bos: bool = False) -> tuple[list[int], list[bytes]]:
        """The ids of `text` and what each adds to it."""
        body = {"content": text, "parse_special": special, "add_special": bos, "with_pieces": True}
        tokens = self._post("tokenize", body)["tokens"]
        pieces = [piece.encode() if isinstance(piece := token["piece"], str) else bytes(piece) for token in tokens]
        return [int(token["id"]) for token in tokens], pieces

    def _ask(self, prompt: Sequence[int], **options: Any) -> Any:
        return self._post("completion", {"prompt": list(prompt), "temperature": 0, **options})

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._address}/{path}", json.dumps(body).encode(), headers)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as reply:
            return json.load(reply)


@contextmanager
def llamacpp(path: Path, *, context: int, float32_state: bool = False) -> Iterator[LlamaCpp]:
    """Serve one model on one thread; its state is float16 as usual, or float32."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.n_gpu_layers = context, 1, 0
    params.warmup = params.fit_params = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    if float32_state:
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(params)
    try:
        yield LlamaCpp(server.listening_address)
    finally:
        del server
