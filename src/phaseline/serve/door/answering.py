"""One request's way through the engine and back to its client, as an ASGI application."""

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack, closing, suppress
from functools import partial

import msgspec
from msgspec import UNSET, Struct
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from phaseline.engine.types import Delta, Progress
from phaseline.errors import PhaselineError
from phaseline.serve.door.answers import Growing
from phaseline.serve.door.asked import Asked
from phaseline.serve.door.envelope import DONE, Tally, beside, event, progress_of
from phaseline.serve.door.event_stream import EventStream
from phaseline.serve.door.objects import Answer
from phaseline.serve.door.problems import problem
from phaseline.serve.door.taking import Later, Taking
from phaseline.serve.process.engine_client import EngineClient
from phaseline.serve.process.stream import Stream, Way


class Answering:
    """Submits what was asked and answers, whole or as events. A client who leaves cancels it, and so does one who takes
    nothing for `patience` seconds.
    """

    def __init__(self, client: EngineClient, asked: Asked, patience: float) -> None:
        self._client, self._asked, self._patience = client, asked, patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._events if self._asked.stream else self._whole
        work = asyncio.ensure_future(answer(scope, receive, send))
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

            def take(number: int, item: Delta | Progress) -> None:
                if isinstance(item, Delta):
                    deltas[number * asked.n + item.index].append(item)

            await Taking(streams, take).run()
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

    async def _events(self, scope: Scope, _: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task
        with closing(EventStream(send, scope["state"]["connection"], self._patience, task.cancel)) as events:
            try:
                async with AsyncExitStack() as stack:
                    streams = await self._submit(stack)
                    spelling = _Spelling(self._asked, Tally(streams))

                    def take(number: int, item: Delta | Progress) -> Later | None:
                        if isinstance(item, Delta) and item.prompt_logprobs:
                            return partial(take_long, number, item)
                        data = spelling.of(number, item)
                        if not data:
                            return None
                        if isinstance(item, Delta) and (around := spelling.around(number, item)):
                            streams[number].ways[item.index] = Way(taking, events.write_now, *around)
                        return events.write(data)

                    async def take_long(number: int, item: Delta) -> None:
                        """One whose spelling would hold up others: it tells of thousands of tokens at once."""
                        data = await asyncio.to_thread(spelling.of, number, item)
                        if later := events.write(data):
                            await later()

                    taking = Taking(streams, take)
                    await taking.run()
            except PhaselineError as error:
                if not events.begun:
                    raise
                if later := events.write(event(problem(error).body())):
                    await later()
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
        self._asked, self._envelope, self._tally = asked, asked.envelope, tally
        self._choices, self._n = asked.choices, asked.n
        self._open_ends = len(asked.choices)
        self._settled = set[Growing]()  # choices
        self._beside = beside(usage=None) if asked.usage else b""
        ids = asked.chat and asked.prompt_ids
        self._once = beside(prompt_token_ids=asked.requests[0].prompt) if ids else b""  # in the first chunk

    def of(self, number: int, item: Delta | Progress) -> bytes:
        """What to send now that `item` came for prompt `number`; b"" if that is nothing."""
        if isinstance(item, Progress):
            told = self._beside + beside(prompt_progress=progress_of(item))
            return self._envelope.chunk(self._choices[number * self._n].nothing(), told)
        if self._asked.running_usage:
            self._beside = beside(usage=self._tally.usage())
        piece = self._choices[number * self._n + item.index].piece(item)
        if item.finish_reason:
            self._open_ends -= 1
            if not self._open_ends:
                return self._end(piece)
        if not piece:
            return b""
        told, self._once = self._beside + self._once, b""
        return self._envelope.chunk(piece, told)

    def around(self, number: int, item: Delta) -> tuple[bytes, bytes] | None:
        """What stands before and after the text in each event that follows that of `item`, but the last; None where
        they differ in more than the text, and once it was told."""
        choice = self._choices[number * self._n + item.index]
        if choice in self._settled or self._asked.running_usage or not choice.plain:
            return None
        self._settled.add(choice)
        piece = choice.piece(Delta(item.request_id, item.index, (), _MARK))
        head, _, tail = self._envelope.chunk(piece, self._beside).partition(_SPELT)
        return head, tail

    def _end(self, piece: Struct | None) -> bytes:
        usage, timings = self._tally.usage(), self._tally.timings()
        if not self._asked.usage:
            return self._envelope.chunk(piece, self._once + beside(timings=timings)) + DONE
        last = self._envelope.chunk(piece, self._beside + self._once)
        return last + self._envelope.chunk(None, beside(usage=usage, timings=timings)) + DONE


_MARK = "\0"  # which no name of a model has
_SPELT = msgspec.json.encode(_MARK)


async def _left(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
