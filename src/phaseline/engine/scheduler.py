"""Scheduler: which tokens of which sequences enter the next step. docs/scheduling.md tells it in words.

Two orders. Rank, by priority and then by arrival: pages are taken from the last in rank, for the sake of those before
it alone. Reading order, by priority and then by what is left to read; but in every second step who is late goes first.
So the first in rank is never set back, and every step advances somebody before all whom it sets back.
"""

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator
from operator import attrgetter

import msgspec

from phaseline.engine.line import Line
from phaseline.engine.policy import Allowance, ItlBudget, Phase, policy_named
from phaseline.engine.sequence import Sequence
from phaseline.engine.types import Request
from phaseline.engine.validate import check_id, check_length
from phaseline.errors import CapacityError
from phaseline.program.step import Segment, Step, Want
from phaseline.state.pages import PageTable

_PATIENCE = 16  # chunks that others may read before a prompt is late


class Plan(msgspec.Struct):
    """One step and who is behind it.

    `copies` must be made, in order, before the step runs, even if the step is then given up. `sequences` are
    aligned with `step.segments`. A token is to be sampled for each of `sampled` from row `rows[i]` of the step's
    logits; the n completions of a request share the row that ends their prompt.
    """

    step: Step
    sequences: list[Sequence]
    copies: list[tuple[int, int, int]]  # (group, source, destination)
    reading: list[tuple[Sequence, Segment]] = []  # whose prompts are read, and what of them
    sampled: list[Sequence] = []
    rows: list[int] = []


class Scheduler:
    """Continuous batching over one page table. Needs no model; not for use by two threads at once.

    `context`: positions the model supports. `chunk`: most prompt tokens per step over all requests; decode rows
    are not counted. `max_running`: most sequences in a step; a request with n completions counts n times from
    the start. `policy`: mixed, prefill-first or decode-first. `itl_budget`: under the mixed policy, keeps chunks that
    join decode rows small enough for the step's time; it may be changed at any time. `patience`: prompt tokens that
    others may read since a prompt came, before it is late; by default those of sixteen full steps.

    Nothing here looks at all who wait: a plan costs the same for five as for five hundred.

    A plan that is not committed has advanced nobody: after a step that failed or was interrupted, plan again.
    """

    def __init__(
        self,
        table: PageTable,
        *,
        context: int,
        chunk: int,
        max_running: int,
        policy: str = "mixed",
        itl_budget: ItlBudget | None = None,
        patience: int | None = None,
    ) -> None:
        if chunk < 1 or not 1 <= max_running <= table.slots:
            raise CapacityError(
                f"chunk = {chunk}, max_running = {max_running}: "
                f"chunk must be at least 1 and max_running from 1 to the page table's {table.slots} slots"
            )
        self.table = table
        self.context = context
        self.chunk = chunk
        self.max_running = max_running
        self.patience = _PATIENCE * chunk if patience is None else patience
        self.running: list[Sequence] = []  # by rank
        self.waiting = Line()
        self.itl_budget = itl_budget
        self.prompt_tokens = 0  # read since the start, again after a preemption: the time by which prompts are late
        self.cached_tokens = 0  # of prompts, that the prefix cache has served since the start
        self.preemptions = 0  # since the start
        self._policy = policy_named(policy, itl_budget=itl_budget is not None)
        self._live: dict[str, list[Sequence]] = {}
        self._arrivals = 0
        self._turn_of_late = False
        self._admitting = True  # in this plan: nobody has been refused or preempted yet

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def unread_tokens(self) -> int:
        """Tokens to read before all who are here have their next one, as far as is known."""
        return self.waiting.unread + sum(s.left for s in self.running)

    def add(self, request: Request) -> list[Sequence]:
        """Queue a request; return its n sequences, the first of which prefills for all.

        Raises RequestError if the id is live, CapacityError if the request could not run even alone.
        """
        params = request.params
        check_id(request.id, self._live)
        if params.n > self.max_running:
            raise CapacityError(f"n = {params.n}: at most max_running = {self.max_running} completions of one prompt")
        capacity = self.table.capacity(self.chunk)
        check_length(request, self.context, "the context")
        check_length(request, capacity, f"the page pool ({self.table.pages} pages of {self.table.page_size})")
        limit = min(len(request.prompt) + params.max_tokens, self.context, capacity)
        sequences = [
            Sequence(request, index, self._arrivals + index, limit, list(request.prompt)) for index in range(params.n)
        ]
        sequences[0].forks = sequences[1:]
        sequences[0].due = self.prompt_tokens + self.patience
        self._arrivals += params.n
        self._live[request.id] = list(sequences)
        self._queue(sequences[0])
        return sequences

    def plan(self) -> Plan | None:
        """Choose the next step, making room for it; None when there is nothing to do."""
        counts: dict[Sequence, int] = {}  # rows of each sequence in the step, in order
        self._admitting = True
        for phase in self._policy.order:
            if phase is Phase.DECODE:
                self._decodes(counts)
            else:
                self._chunks(counts)
            if counts and not self._policy.mixed:
                break
        segments = [_segment(sequence, count) for sequence, count in counts.items()]
        plan = Plan(Step(segments), list(counts), self.table.take_copies())
        wanted = 0
        for sequence, segment in zip(plan.sequences, segments, strict=True):
            if sequence.prefilling:
                plan.reading.append((sequence, segment))
            if segment.want is Want.NONE:
                continue
            wanted += 1 if segment.want is Want.LAST else len(segment.tokens)
            if segment.start + len(segment.tokens) == len(sequence.tokens) and not sequence.full:
                owners = [sequence, *sequence.forks]
                plan.sampled += owners
                plan.rows += [wanted - 1] * len(owners)
        return plan if segments else None

    def commit(self, plan: Plan, tokens: Iterable[int]) -> list[Sequence]:
        """Record that `plan` ran and that `tokens[i]` was sampled for `plan.sampled[i]`.

        Returns the sequences with nothing left to compute: each gained a token, or ends with its prefill because
        max_tokens is 0. The caller calls `finish` on those that are done, and must on those that are `full`.
        A sequence aborted since the plan was made is passed over.
        """
        advanced: list[Sequence] = []
        before = self.prompt_tokens
        for sequence, segment in zip(plan.sequences, plan.step.segments, strict=True):
            slot = sequence.slot
            if slot is None:
                continue
            if sequence.prefilling:
                self.prompt_tokens += len(segment.tokens)
                sequence.due += len(segment.tokens)  # what it reads itself is not time that it waits
            self.table.fill(slot, segment.tokens)
            sequence.computed += len(segment.tokens)
            if sequence.computed == len(sequence.tokens):
                advanced.append(sequence)
                if sequence.forks:
                    advanced += self._fork(sequence, slot)
        for sequence, token in zip(plan.sampled, tokens, strict=True):
            if sequence.slot is not None:
                sequence.tokens.append(token)
        if self.prompt_tokens > before:
            self._turn_of_late = not self._turn_of_late
        return advanced

    def observe(self, plan: Plan, seconds: float) -> None:
        """A plan's step took so long, from its planning to its last token: what a budget in time learns from."""
        if self.itl_budget:
            self.itl_budget.cost.observe(plan.step, seconds)

    def finish(self, sequence: Sequence) -> None:
        """Remove a running sequence; its pages are back at once."""
        self.running.remove(sequence)
        self._release(sequence)
        live = self._live[sequence.request.id]
        live.remove(sequence)
        if not live:
            del self._live[sequence.request.id]

    def abort(self, request_id: str) -> list[Sequence]:
        """Remove every sequence of a request, queued or running, and return them: none if the id is not live.

        Not while an executor runs a step: it reads the pages that this gives back.
        """
        sequences = self._live.pop(request_id, [])
        for sequence in sequences:
            self._release(sequence)
            self.waiting.remove(sequence)
        self.running = [s for s in self.running if s.request.id != request_id]
        return sequences

    def _decodes(self, counts: dict[Sequence, int]) -> None:
        """One row for each sequence past its prefill, by rank, preempting the last when pages run out."""
        for sequence in self.running:  # preemption shortens this list from its end, never before the cursor
            if not sequence.prefilling and self._make_room(sequence, 1, counts):
                counts[sequence] = 1

    def _chunks(self, counts: dict[Sequence, int]) -> None:
        """Prefill chunks in reading order, until what may join the step's decode rows is spent."""
        if len(counts) == len(self.running) and not self.waiting:  # all decode, and nobody comes
            return
        allowance: Allowance | None = None
        for sequence in self._prefills():
            allowance = allowance or self._allowance(counts)
            count = allowance.take(self._wanted(sequence), sequence.computed, sequence.scores_prompt)
            if count and self._make_room(sequence, count, counts):
                counts[sequence] = count
            if not allowance.rows:
                return

    def _allowance(self, decodes: dict[Sequence, int]) -> Allowance:
        """What may join these rows."""
        budget = self.itl_budget
        if not budget:
            return Allowance(self.chunk)
        return budget.allowance(Step([_segment(sequence, count) for sequence, count in decodes.items()]), self.chunk)

    def _wanted(self, sequence: Sequence) -> int:
        """Tokens that its next chunk may have: all that are left, but none beyond where a snapshot should be kept."""
        left, stride = sequence.left, self.table.stride
        return left if stride is None else min(left, stride - sequence.computed % stride)

    def _prefills(self) -> Iterator[Sequence]:
        """Who reads, in order; who waits is admitted as his turn comes, until one can't be or pages were taken."""
        reading = deque(sorted((s for s in self.running if s.prefilling), key=self._order))
        while True:
            comer = self._next_in_line() if self._admitting else None
            if comer and not (reading and self._order(reading[0]) < self._order(comer)):
                self._admitting = self._admit(comer)
                if self._admitting:
                    yield comer
            elif reading:
                sequence = reading.popleft()
                if sequence.prefilling:  # not preempted since
                    yield sequence
            else:
                return

    def _order(self, sequence: Sequence) -> tuple[int, bool, int, int]:
        """Who reads first: the shortest, or in turn the oldest late one; of equals the oldest."""
        late = self._turn_of_late and self._is_late(sequence)
        left = sequence.unread if sequence.slot is None else sequence.left
        return sequence.request.priority, not late, sequence.arrival if late else left, sequence.arrival

    def _next_in_line(self) -> Sequence | None:
        """Who is admitted next. Once one who is late has been refused nobody else is: all that is freed is for him."""
        latest = self.waiting.longest_due
        if latest and self._is_late(latest) and (self._turn_of_late or latest.refused):
            return latest
        return self.waiting.shortest

    def _is_late(self, sequence: Sequence) -> bool:
        return sequence.due < self.prompt_tokens

    def _queue(self, sequence: Sequence) -> None:
        cached = 0 if sequence.scores_prompt else self.table.cached(sequence.tokens, sequence.request.salt)
        sequence.unread = len(sequence.tokens) - cached
        self.waiting.add(sequence)

    def _admit(self, sequence: Sequence) -> bool:
        """Start one who waits if seats are left and pages for its first chunk, and for all its tokens in the
        groups that will keep them: there its chunks then can't fail."""
        sequence.refused = True
        if sum(s.seats for s in self.running) + sequence.seats > self.max_running:
            return False
        if self.table.free_pages <= sequence.blocked_at:
            return False
        length = len(sequence.tokens)
        slot, cached = self.table.open(sequence.tokens, sequence.request.salt, reuse=not sequence.scores_prompt)
        if not self.table.grow(slot, min(cached + self.chunk, length), ahead=length):
            self.table.close(slot)
            sequence.blocked_at = self.table.free_pages
            return False
        self.waiting.remove(sequence)
        sequence.slot, sequence.computed, sequence.prefill = slot, cached, length
        if not sequence.preemptions:
            sequence.cached = cached
            self.cached_tokens += cached
        insort(self.running, sequence, key=attrgetter("rank"))
        return True

    def _make_room(self, sequence: Sequence, count: int, counts: dict[Sequence, int]) -> bool:
        """Get pages for `count` more positions by preempting the last in rank, which leaves the step, too.

        It comes back as one who is late. False if that is this sequence itself.
        """
        assert sequence.slot is not None
        while not self.table.grow(sequence.slot, sequence.computed + count, ahead=sequence.prefill):
            last = self.running.pop()
            counts.pop(last, None)
            self._release(last)
            last.preemptions += 1
            self.preemptions += 1
            last.due, last.refused = -1, True
            self._admitting = False
            self._queue(last)
            if last is sequence:
                sequence.blocked_at = self.table.free_pages
                return False
        return True

    def _fork(self, parent: Sequence, slot: int) -> list[Sequence]:
        """Let the other completions of a prompt run from its stored state."""
        forks, parent.forks = parent.forks, []
        for child in forks:
            child.slot = self.table.fork(slot)
            child.computed, child.prefill, child.cached = parent.computed, parent.prefill, parent.cached
        after = self.running.index(parent) + 1
        self.running[after:after] = forks
        return forks

    def _release(self, sequence: Sequence) -> None:
        """Give up a sequence's slot and pages, if it has any; its tokens stay known."""
        if sequence.slot is not None:
            self.table.close(sequence.slot)
        sequence.slot, sequence.computed, sequence.prefill = None, 0, 0


def _segment(sequence: Sequence, count: int) -> Segment:
    """The next `count` tokens of a sequence; only rows that somebody reads are wanted."""
    assert sequence.slot is not None
    end = sequence.computed + count
    if sequence.scores_prompt:
        want = Want.ALL
    elif end == len(sequence.tokens) and not sequence.full:
        want = Want.LAST
    else:
        want = Want.NONE
    return Segment(sequence.slot, sequence.computed, sequence.tokens[sequence.computed : end], want)
