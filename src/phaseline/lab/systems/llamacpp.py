"""llama.cpp as a system under test, by its native endpoint: token ids in, an exact count with each event, timings."""

import importlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Self

from phaseline.errors import CapacityError, RequestError, UnsupportedError
from phaseline.lab.systems.base import Ask, Piece
from phaseline.lab.systems.event_stream import count, nonsense, parse, read_pieces
from phaseline.lab.systems.http_door import Door
from phaseline.lab.systems.sse import ServerEvent
from phaseline.lab.systems.timeouts import Timeouts, watch
from phaseline.lab.trace import META

_REASONS = {"limit": "length", "eos": "stop", "word": "stop"}  # llama.cpp's word: the one of the OpenAI API


class LlamaCppSystem:
    """A running llama-server by its base URL, or one in this process (`launch`). `verify`: see `Door`."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        verify: bool | str = True,
        timeouts: Timeouts | None = None,
    ) -> None:
        self._timeouts = timeouts or Timeouts()
        self._door = Door(base_url, api_key=api_key, verify=verify, connect_s=self._timeouts.connect)
        self._server: Any = None  # the one in this process
        self._launched: dict[str, Any] = {}
        self.name = f"llama.cpp {self._door.url}"

    @classmethod
    def launch(
        cls,
        model_path: str | Path,
        *,
        threads: int,
        context: int = 4096,
        streams: int = 1,
        ubatch: int | None = None,
        timeouts: Timeouts | None = None,
    ) -> Self:
        """Start llama.cpp's server in this process, on this machine's CPU; `close` ends it.

        `context` is what each of `streams` may hold, `ubatch` the rows of one step (its chunk of a prompt).
        UnsupportedError without the `xllamacpp` package, or for a folder; CapacityError if the model can't be loaded.
        """
        try:
            xllamacpp = importlib.import_module("xllamacpp")
        except ImportError:
            raise UnsupportedError(
                "llama.cpp in this process needs the package xllamacpp: pip install 'phaseline[reference]'"
            ) from None
        if Path(model_path).is_dir():
            raise UnsupportedError(f"{model_path}: llama.cpp reads GGUF files, not folders")
        params = xllamacpp.CommonParams()
        params.model.path = str(model_path)
        params.n_gpu_layers = 0
        params.n_ctx = context * streams
        params.n_parallel = streams
        params.warmup = params.fit_params = False
        params.endpoint_props = True
        params.verbosity = -1  # else it logs every request over the caller's screen
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        if ubatch:
            params.n_ubatch = ubatch
        try:
            server = xllamacpp.Server(params)
        except (RuntimeError, ValueError) as error:
            raise CapacityError(f"llama.cpp cannot serve {model_path}: {error}") from error
        system = cls(server.listening_address, timeouts=timeouts)
        system._server = server
        system._launched = {"threads": threads, "context": context, "streams": streams, "ubatch": params.n_ubatch}
        system._launched["version"] = f"xllamacpp {xllamacpp.__version__}"
        system.name = "llama.cpp"
        return system

    def generate(self, ask: Ask) -> AsyncGenerator[Sequence[Piece], None]:
        """See StreamSystem. Raises RequestError for a least length below the greatest, which llama.cpp can't keep."""
        if ask.min_tokens not in (None, 0, ask.max_tokens):
            raise RequestError(f"llama.cpp has no min_tokens: it can be None or max_tokens = {ask.max_tokens}")
        return watch(self._pieces(ask), self._timeouts)

    async def describe(self) -> Mapping[str, Any]:
        props = await self._door.get("/props")
        if not isinstance(props, dict):
            raise nonsense(props)
        known = {name: props.get(name) for name in ("model_path", "model_ftype", "total_slots", "build_info")}
        return {"kind": "llamacpp", "base_url": self._door.url, **self._launched, **known}

    async def close(self) -> None:
        self._door.close()
        self._server = None

    async def _pieces(self, ask: Ask) -> AsyncGenerator[Sequence[Piece], None]:
        body = {
            "prompt": ask.prompt if isinstance(ask.prompt, str) else list(ask.prompt),
            "n_predict": ask.max_tokens,
            "ignore_eos": ask.ignore_eos or ask.min_tokens == ask.max_tokens,
            "stream": True,
            **ask.options,
        }
        async with self._door.ask("/completion", body) as answer, aclosing(read_pieces(answer, Reader())) as batches:
            async for batch in batches:
                yield batch


class Reader:
    """Reads the events of one answer. Each tells how many tokens there are so far; one of them may bring several,
    since a token that ends within a character is held back."""

    def __init__(self) -> None:
        self.finished = self.closed = False
        self._tokens = 0

    def read(self, event: ServerEvent) -> list[Piece]:
        """The pieces in an event. Raises StreamFault for an error in it, or for garbage."""
        if not event.data.strip() or event.data.strip() == "[DONE]":
            return []
        said = parse(event)
        text, timings = said.get("content", ""), said.get("timings") or {}
        if not isinstance(text, str) or not isinstance(timings, dict):
            raise nonsense(event.data)
        pieces = []
        total = count(said.get("tokens_predicted"))
        tokens = total - self._tokens if total is not None else int(not said.get("stop"))
        if tokens < 0:
            raise nonsense(event.data)
        self._tokens += tokens
        if tokens or text:
            pieces.append(Piece("text", tokens, text))
        if said.get("stop"):
            self.finished = True
            pieces.append(Piece(META, facts=_facts(said, timings)))
        return pieces


def _facts(said: Mapping[str, Any], timings: Mapping[str, Any]) -> dict[str, Any]:
    facts = {
        "finish_reason": _REASONS.get(said.get("stop_type", ""), said.get("stop_type")),
        "prompt_tokens": count(said.get("tokens_evaluated")),
        "cached_tokens": count(timings.get("cache_n")),
        "output_tokens": count(said.get("tokens_predicted")),
        "timings": timings or None,
    }
    return {name: value for name, value in facts.items() if value is not None}
