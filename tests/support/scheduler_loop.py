"""The engine's loop without a model: a scheduler over pools of tokens that stand where an executor's memory would.

The recorder writes each token where the page table says, and "samples" from what it reads back. So a sequence
ends with the right tokens only if prefix reuse, copy-on-write, chunking and preemption all kept its memory whole.
"""

from collections.abc import Collection, Iterable
from zlib import crc32

import numpy as np

from phaseline.engine.scheduler import Plan, Scheduler
from phaseline.engine.sequence import Sequence
from phaseline.program.state import PagedKV, Recurrent, SlidingKV, StateSpec
from phaseline.program.step import Segment, Step, Want
from phaseline.state.lists import GONE

GARBAGE = 255
NEVER = 1000  # far more steps than all tokens could need, recomputation included


def next_token(context: list[int], index: int) -> int:
    """A stand-in for the model: a fixed function of everything before, different for each completion."""
    return crc32(bytes([index, *context])) % 11


def expected(sequence: Sequence, limit: int, eos: int | None = None) -> list[int]:
    """What a completion generates when nothing else exists."""
    tokens = list(sequence.request.prompt)
    while len(tokens) < limit and (tokens[-1] != eos or len(tokens) == sequence.prompt_len):
        tokens.append(next_token(tokens, sequence.index))
    return tokens


def state_of(windows: Iterable[int], every: int | None = None) -> list[StateSpec]:
    """A group that keeps everything, one for each window, and perhaps one with a snapshot at multiples of `every`."""
    recurrent = [Recurrent(1, (("carried", (1,)),), every)] if every else []
    return [PagedKV(1, 1, 1), *(SlidingKV(1, 1, 1, window) for window in windows), *recurrent]


class Recorder:
    """Pages of tokens, of a group that keeps everything and of others with windows; snapshots, of all tokens so far.

    A step's "logits" are, per wanted row, all tokens up to that row, read from the memory of the first group; the
    others must hold the same as far as rows of the step read them.
    """

    def __init__(self, pages: int, page_size: int, state: Collection[StateSpec]) -> None:
        self.page_size = page_size
        self.specs = [spec for spec in state if not isinstance(spec, Recurrent)]
        self.memory = np.full((len(self.specs), pages, page_size), GARBAGE)
        self.snapshots: dict[int, list[int]] | None = {GONE: []} if len(self.specs) < len(state) else None

    def copy_pages(self, copies: list[tuple[int, int, int]]) -> None:
        for group, source, destination in copies:
            self.memory[group, destination] = self.memory[group, source]

    def forward(self, step: Step, matrix: np.ndarray, *, interrupted: bool = False) -> list[list[int]]:
        logits: list[list[int]] = []
        for g in range(len(self.specs)):
            for segment in step.segments:
                for position, token in enumerate(segment.tokens, segment.start):
                    page = matrix[g, segment.slot, position // self.page_size]
                    assert np.count_nonzero(matrix[g] == page) == 1, "writing into a shared page"
                    self.memory[g, page, position % self.page_size] = GARBAGE if interrupted else token
        for segment in step.segments:
            end = segment.start + len(segment.tokens)
            read = self.read(matrix, 0, segment.slot, 0, end)
            for g, spec in enumerate(self.specs):
                oldest = spec.oldest(segment.start)
                assert interrupted or self.read(matrix, g, segment.slot, oldest, end) == read[oldest:]
            if self.snapshots is not None:
                self.carry(matrix[len(self.specs)], segment, read, interrupted)
            logits += [read[: end - i] for i in reversed(range(segment.wanted))]
        assert len(logits) == step.wanted
        return logits

    def carry(self, matrix: np.ndarray, segment: Segment, read: list[int], interrupted: bool) -> None:
        """From the snapshot that a segment begins from to the one that it leaves."""
        assert self.snapshots is not None
        source, destination = matrix[segment.slot, :2].tolist()
        assert self.snapshots[source] == (read[: segment.start] if not interrupted else self.snapshots[source])
        assert np.count_nonzero(matrix == destination) == 1, "writing a shared snapshot"
        self.snapshots[destination] = [GARBAGE] if interrupted else read

    def read(self, matrix: np.ndarray, group: int, slot: int, start: int, end: int) -> list[int]:
        positions = np.arange(start, end)
        pages = matrix[group, slot, positions // self.page_size]
        assert (pages >= 0).all(), "a page that will be read is gone"
        return [int(token) for token in self.memory[group, pages, positions % self.page_size]]


class Loop:
    """The engine's loop, with every promise of the scheduler checked at each step."""

    def __init__(
        self, scheduler: Scheduler, eos: int | None = None, windows: Collection[int] = (), every: int | None = None
    ) -> None:
        self.scheduler = scheduler
        self.eos = eos
        self.recorder = Recorder(scheduler.table.pages, scheduler.table.page_size, state_of(windows, every))
        self.finished: list[Sequence] = []
        self.positions: dict[tuple[Sequence, int], int] = {}  # next position by sequence and incarnation

    def step(self, *, interrupted: bool = False, aborted: Iterable[str] = ()) -> Plan:
        """One step, given up halfway if `interrupted`; `aborted` requests are cancelled once it has run."""
        scheduler = self.scheduler
        before = {sequence: sequence.preemptions for sequence in scheduler.running}
        plan = scheduler.plan()
        assert plan is not None, "work left and nothing planned"
        self.check(plan)
        self.check_victims(plan, before)
        self.recorder.copy_pages(plan.copies)
        logits = self.recorder.forward(plan.step, scheduler.table.matrix, interrupted=interrupted)
        for request_id in aborted:
            scheduler.abort(request_id)
        if not interrupted:
            self.commit(plan, logits)
        scheduler.table.check()
        idle = set(range(scheduler.table.slots)) - {sequence.slot for sequence in scheduler.running}
        assert (scheduler.table.matrix[:, list(idle)] == GONE).all(), "pages of a sequence that does not run"
        return plan

    def commit(self, plan: Plan, logits: list[list[int]]) -> None:
        for sequence, segment in zip(plan.sequences, plan.step.segments, strict=True):
            incarnation = sequence, sequence.preemptions
            assert segment.start == self.positions.get(incarnation, segment.start), "a position repeated or left out"
            self.positions[incarnation] = segment.start + len(segment.tokens)
        for sequence, row in zip(plan.sampled, plan.rows, strict=True):
            assert logits[row] == sequence.tokens, "memory does not hold the sequence"
        sampled = [next_token(logits[row], s.index) for s, row in zip(plan.sampled, plan.rows, strict=True)]
        for sequence in self.scheduler.commit(plan, sampled):
            if sequence.full or (sequence.generated and sequence.tokens[-1] == self.eos):
                self.scheduler.finish(sequence)
                self.finished.append(sequence)

    def check(self, plan: Plan) -> None:
        scheduler = self.scheduler
        rows = list(zip(plan.sequences, plan.step.segments, strict=True))
        assert len({segment.slot for _, segment in rows}) == len(rows) > 0
        prefills = [sequence.prefilling for sequence in plan.sequences]
        assert prefills == sorted(prefills), "decoding sequences come first"
        assert sum(len(segment.tokens) for s, segment in rows if s.prefilling) <= scheduler.chunk
        assert all(len(segment.tokens) == 1 for s, segment in rows if not s.prefilling)
        assert sum(s.seats for s in scheduler.running) <= scheduler.max_running
        assert [s.rank for s in scheduler.running] == sorted(s.rank for s in scheduler.running)
        assert len({*scheduler.running, *scheduler.waiting}) == len(scheduler.running) + len(scheduler.waiting)
        for sequence, segment in rows:
            end = segment.start + len(segment.tokens)
            assert list(segment.tokens) == sequence.tokens[segment.start : end]
            last = end == len(sequence.tokens) and not sequence.full
            assert (sequence in plan.sampled) == last
            scores = sequence.request.params.prompt_logprobs is not None and not sequence.generated
            assert segment.want is (Want.ALL if scores else Want.LAST if last else Want.NONE)

    def check_victims(self, plan: Plan, before: dict[Sequence, int]) -> None:
        """Who was set back by a plan comes last in rank, and behind somebody whom it advances."""
        victims = [sequence for sequence, preemptions in before.items() if sequence.preemptions > preemptions]
        if victims:
            first = min(sequence.rank for sequence in victims)
            assert all(sequence.rank < first for sequence in before if sequence not in victims), "not the last gave way"
            assert min(sequence.rank for sequence in plan.sequences) < first, "set back for nobody's sake"
            assert not any(sequence in self.scheduler.running for sequence in victims), "back before there is more room"

    def run(self) -> list[Sequence]:
        while self.scheduler.has_work:
            self.step()
        return self.finished
