"""Line: who waits for a seat, in the two orders that decide who is next."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count

from phaseline.engine.sequence import Sequence

# priority, what the order goes by, arrival, ticket: no two are equal, so that sequences are never compared
_Entry = tuple[int, int, int, int, Sequence]
_SLACK = 64  # entries of those who left that a heap may hold beyond as many as wait


class Line:
    """Sequences that wait. All but iteration costs the same for five as for five hundred, up to a logarithm.

    Who leaves is struck off the tickets; a heap drops its entry when that comes to the top, or when most are such.
    """

    def __init__(self) -> None:
        self.unread = 0  # tokens that those who wait have to read, all together
        self._tickets: dict[Sequence, int] = {}
        self._next_ticket = count()
        self._by_length: list[_Entry] = []
        self._by_age: list[_Entry] = []

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Sequence]:
        """In the order in which they came here."""
        return iter(self._tickets)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence by its `unread` and its `due`, which stay as they are until it leaves."""
        ticket = self._tickets[sequence] = next(self._next_ticket)
        self.unread += sequence.unread
        for heap, measure in ((self._by_length, sequence.unread), (self._by_age, sequence.due)):
            heappush(heap, (sequence.request.priority, measure, sequence.arrival, ticket, sequence))
            if len(heap) > 2 * len(self) + _SLACK:
                heap[:] = [entry for entry in heap if self._waits(entry)]
                heapify(heap)

    def remove(self, sequence: Sequence) -> None:
        """Let a sequence go; nothing if it does not wait."""
        if self._tickets.pop(sequence, None) is not None:
            self.unread -= sequence.unread

    @property
    def shortest(self) -> Sequence | None:
        """Of the first priority, who has least to read."""
        return self._top(self._by_length)

    @property
    def longest_due(self) -> Sequence | None:
        """Of the first priority, who is due first."""
        return self._top(self._by_age)

    def _top(self, heap: list[_Entry]) -> Sequence | None:
        while heap and not self._waits(heap[0]):
            heappop(heap)
        return heap[0][-1] if heap else None

    def _waits(self, entry: _Entry) -> bool:
        return self._tickets.get(entry[-1]) == entry[-2]
