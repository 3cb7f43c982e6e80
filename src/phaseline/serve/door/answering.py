"""One request's way through the engine and back to its client, as an ASGI application."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing, closing, suppress

import msgspec
from msgspec import UNSET, Struct
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from phaseline.engine.types import Delta, Progress
from phaseline.errors import PhaselineError
from phaseline.serve.door.asked import Asked
from phaseline.serve.door.envelope import DONE, Tally, event, progress_of
from phaseline.serve.door.event_stream import EventStream
from phaseline.serve.door.objects import Answer
from phaseline.serve.door.problems import problem
from phaseline.serve.process.engine_client import EngineClient
from phaseline.serve.process.stream import Stream


class Answering:
    """Submits what was asked and answers, whole or as events. A client who leaves cancels it, and so does one who takes
    nothing for `patience` seconds.
    """

    def __init__(self, client: EngineClient, asked: Asked, patience: float) -> None:
        self._client, self._asked, self._patience = client, asked, patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.ensure_future(self._events(send) if self._asked.stream else self._whole(scope, receive, send))
        left = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            work.cancel()  # does nothing to what is done
        with suppress(asyncio.CancelledError):
            await work

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked, envelope = self._asked, self._asked.envelope
        deltas = defaultdict[int, list[Delta]](list)
        async with AsyncExitStack() as stack:
            streams = await self._submit(stack)
            tally = Tally(streams)
            async with aclosing(_items(streams)) as items:
                async for number, item in items:
                    if isinstance(item, Delta):
                        tally.add(item)
                        deltas[number * asked.n + item.index].append(item)
        usage, timings = tally.usage(), tally.timings()

        def spelt() -> bytes:
            answer = Answer[Struct](
                id=envelope.id,
                object="chat.completion" if asked.chat else "text_completion",
                created=envelope.created,
                model=envelope.model,
                choices=[choice.whole(deltas[index]) for index, choice in enumerate(asked.choices)],
                usage=usage,
                timings=timings,
                prompt_token_ids=asked.requests[0].prompt if asked.chat and asked.prompt_ids else UNSET,
            )
            return msgspec.json.encode(answer)

        # Log-probabilities of a long answer take seconds to spell, in which others want to be served.
        await Response(await asyncio.to_thread(spelt), media_type="application/json")(scope, receive, send)

    async def _events(self, send: Send) -> None:
        task = asyncio.current_task()
        assert task
        with closing(EventStream(send, self._patience, task.cancel)) as events:
            try:
                async with AsyncExitStack() as stack:
                    streams = await self._submit(stack)
                    spelling = _Spelling(self._asked, Tally(streams))
                    async with aclosing(_items(streams)) as items:
                        async for number, item in items:
                            if isinstance(item, Delta) and item.prompt_logprobs:  # of thousands of tokens at once
                                data = await asyncio.to_thread(spelling.of, number, item)
                            else:
                                data = spelling.of(number, item)
                            if data:
                                await events.write(data)
            except PhaselineError as error:
                if not events.begun:
                    raise
                await events.write(event(problem(error).body()))
            await events.end()

    async def _submit(self, stack: AsyncExitStack) -> list[Stream]:
        """Hand every request over; `stack` leaves their streams."""
        streams = []
        for request in self._asked.requests:
            streams.append(await stack.enter_async_context(self._client.submit(request)))
            await asyncio.sleep(0)  # others get their turn: there may be hundreds, each of some milliseconds
        return streams


class _Spelling:
    """An answer's events."""

    def __init__(self, asked: Asked, tally: Tally) -> None:
        self._asked, self._tally = asked, tally
        self._open_ends = len(asked.choices)
        self._usage: dict[str, Struct | None] = {"usage": None} if asked.usage else {}
        self._once = {"prompt_token_ids": asked.requests[0].prompt} if asked.chat and asked.prompt_ids else {}

    def of(self, number: int, item: Delta | Progress) -> bytes:
        """What to send now that `item` came for prompt `number`; b"" if that is nothing."""
        asked, envelope, tally, usage = self._asked, self._asked.envelope, self._tally, self._usage
        if isinstance(item, Progress):
            choice = asked.choices[number * asked.n].nothing()
            return envelope.chunk([choice], **usage, prompt_progress=progress_of(item))
        tally.add(item)
        if asked.running_usage:
            usage["usage"] = tally.usage()
        piece = asked.choices[number * asked.n + item.index].piece(item)
        self._open_ends -= item.finish_reason is not None
        if self._open_ends:
            return envelope.chunk([piece], **usage, **self._first()) if piece else b""
        pieces, facts = [piece] if piece else [], {"usage": tally.usage(), "timings": tally.timings()}
        if asked.usage:
            return envelope.chunk(pieces, **usage, **self._first()) + envelope.chunk([], **facts) + DONE
        return envelope.chunk(pieces, timings=facts["timings"], **self._first()) + DONE

    def _first(self) -> dict[str, Sequence[int]]:
        """What the first chunk has besides."""
        once, self._once = self._once, {}
        return once


async def _items(streams: Sequence[Stream]) -> AsyncGenerator[tuple[int, Delta | Progress], None]:
    """What comes of each stream, with the stream's number, until all have ended or one fails."""
    if len(streams) == 1:
        async for item in streams[0]:
            yield 0, item
        return
    queue = asyncio.Queue[tuple[int, Delta | Progress | PhaselineError | None]](len(streams))

    async def pump(number: int, stream: Stream) -> None:
        try:
            async for item in stream:
                await queue.put((number, item))
            await queue.put((number, None))
        except PhaselineError as error:
            await queue.put((number, error))

    pumps = [asyncio.ensure_future(pump(number, stream)) for number, stream in enumerate(streams)]
    try:
        open_ends = len(pumps)
        while open_ends:
            number, came = await queue.get()
            if isinstance(came, PhaselineError):
                raise came
            if came is None:
                open_ends -= 1
            else:
                yield number, came
    finally:
        for task in pumps:
            task.cancel()


async def _left(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
