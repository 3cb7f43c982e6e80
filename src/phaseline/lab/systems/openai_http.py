"""Any OpenAI-compatible server as a system under test: chat or completions, streaming or not."""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Literal

from phaseline.errors import RequestError
from phaseline.lab.systems.base import Ask, Piece, StreamFault
from phaseline.lab.systems.event_stream import nonsense, read_pieces
from phaseline.lab.systems.http_door import Answer, Door
from phaseline.lab.systems.openai_chunks import ChunkReader
from phaseline.lab.systems.sse import ServerEvent
from phaseline.lab.systems.timeouts import Timeouts, watch

_REFUSALS = (400, 422)  # how servers refuse a field they do not know


class OpenAISystem:
    """A server by its base URL; "/v1" is added to one without a path. Prompts of token ids need api="completions".

    `model` None means the only one the server has. A model that is not named, and a server that refuses
    `stream_options`, cost the first stream a round trip: call `describe` and warm up before measuring.
    `verify`: see `Door`. Not streaming, an answer is one batch, and only the total timeout applies to it.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        api: Literal["chat", "completions"] = "chat",
        stream: bool = True,
        api_key: str | None = None,
        verify: bool | str = True,
        timeouts: Timeouts | None = None,
    ) -> None:
        if api not in ("chat", "completions"):
            raise RequestError(f"api = {api!r} is not supported; chat and completions are")
        timeouts = timeouts or Timeouts()
        self._timeouts = timeouts if stream else replace(timeouts, first=None)
        self._door = Door(base_url, api_key=api_key, verify=verify, connect_s=timeouts.connect)
        self._root = "" if self._door.path else "/v1"
        self._model, self._api, self._stream = model, api, stream
        self._usage: bool | None = None  # whether the server takes `stream_options`; None until it is known
        self.name = f"openai {self._door.url}"

    def generate(self, ask: Ask) -> AsyncGenerator[Sequence[Piece], None]:
        """See StreamSystem. Raises RequestError, before anything is sent, for token ids on the chat API."""
        if self._api == "chat" and not isinstance(ask.prompt, str):
            raise RequestError("the chat API takes text, not token ids; use the completions API for ids")
        return watch(self._pieces(ask), self._timeouts)

    async def describe(self) -> Mapping[str, Any]:
        model = await self._named()
        return {
            "kind": "openai",
            "base_url": self._door.url,
            "api": self._api,
            "stream": self._stream,
            "model": model,
            "usage_in_stream": self._usage,
        }

    async def close(self) -> None:
        self._door.close()

    async def _pieces(self, ask: Ask) -> AsyncGenerator[Sequence[Piece], None]:
        path = self._root + ("/chat/completions" if self._api == "chat" else "/completions")
        body = self._body(ask, await self._named())
        attempts = [body]
        if self._stream and self._usage is not False and "stream_options" not in body:
            attempts.insert(0, body | {"stream_options": {"include_usage": True}})
        for attempt in attempts:
            async with self._door.ask(path, attempt) as answer:
                if attempt is not body and answer.status in _REFUSALS:
                    await answer.read()
                    continue
                if len(attempts) > 1 and answer.status == 200:
                    self._usage = attempt is not body
                async with aclosing(self._read(answer)) as batches:
                    async for batch in batches:
                        yield batch
                return

    async def _read(self, answer: Answer) -> AsyncGenerator[Sequence[Piece], None]:
        reader = ChunkReader()
        if self._stream:
            async with aclosing(read_pieces(answer, reader)) as batches:
                async for batch in batches:
                    yield batch
            return
        whole = await answer.text()
        pieces = reader.read(ServerEvent(whole))
        if not reader.finished:
            raise nonsense(whole)
        yield pieces

    def _body(self, ask: Ask, model: str) -> dict[str, Any]:
        body: dict[str, Any] = {"model": model, "max_tokens": ask.max_tokens, "stream": self._stream}
        if self._api == "chat":
            body["messages"] = [{"role": "user", "content": ask.prompt}]
        else:
            body["prompt"] = ask.prompt if isinstance(ask.prompt, str) else list(ask.prompt)
        if ask.min_tokens is not None:
            body["min_tokens"] = ask.min_tokens
        if ask.ignore_eos:
            body["ignore_eos"] = True
        return {name: value for name, value in (body | dict(ask.options)).items() if value is not None}

    async def _named(self) -> str:
        if self._model is None:
            listed = await self._door.get(self._root + "/models")
            try:
                names = [str(model["id"]) for model in listed["data"]]
            except (KeyError, TypeError):
                raise StreamFault(f"not a list of models: {json.dumps(listed)[:200]}") from None
            if len(names) != 1:
                raise StreamFault(f"the server has {len(names)} models, choose one of them: {', '.join(names)}")
            self._model = names[0]
        return self._model
