"""Page ids of one state group: which are free, which are cached under a hash, which are held and how often."""

from collections import Counter, OrderedDict
from collections.abc import Callable


class PageIds:
    """Ids 0 .. count - 1, each exactly one of *free*, *cached* or *live*.

    Cached: registered under its hash, held by nobody, evicted least recently used first. `evicted`, if any, is told
    the hash then.
    """

    def __init__(self, count: int, evicted: Callable[[bytes], object] | None = None) -> None:
        self.count = count
        self._evicted = evicted
        self._free = list(range(count - 1, -1, -1))
        self._refs = [0] * count
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._page_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}

    @property
    def obtainable(self) -> int:
        """Pages that `take` can give now: free ones and cached ones, which would be evicted."""
        return len(self._free) + len(self._cached)

    def shared(self, page: int) -> bool:
        return self._refs[page] > 1

    def find(self, digest: bytes) -> int | None:
        """The page registered under a hash."""
        return self._page_of.get(digest)

    def take(self) -> int:
        """A page of one's own."""
        page = self._free.pop() if self._free else self._evict()
        self._refs[page] = 1
        return page

    def hold(self, page: int) -> None:
        """One holder more of a live or cached page."""
        if not self._refs[page]:
            del self._cached[page]
        self._refs[page] += 1

    def release(self, page: int) -> None:
        """One holder less: after the last one a registered page stays cached, another is free at once."""
        self._refs[page] -= 1
        if self._refs[page]:
            return
        if page in self._digest_of:
            self._cached[page] = None
        else:
            self._free.append(page)

    def register(self, page: int, digest: bytes) -> None:
        """Let a live page be found. One whose twin is registered already stays unknown, and will be free when left."""
        if digest not in self._page_of:
            self._page_of[digest] = page
            self._digest_of[page] = digest

    def drop(self, digest: bytes) -> None:
        """Free the page of this hash if it is cached."""
        page = self._page_of.get(digest)
        if page is not None and page in self._cached:
            del self._cached[page]
            self._forget(page)
            self._free.append(page)

    def clear_cache(self) -> None:
        """Forget every cached page."""
        while self._cached:
            self._free.append(self._evict())

    def check(self, held: Counter[int]) -> None:
        """Raise AssertionError unless pages are held so often, and nothing is lost or counted twice."""
        assert all(held[page] == refs for page, refs in enumerate(self._refs)), "refcounts differ from references"
        places = sorted([*self._free, *self._cached, *held])
        assert places == list(range(self.count)), "a page is not exactly one of free, cached and live"
        assert self._digest_of == {page: digest for digest, page in self._page_of.items()}, "hash maps differ"
        assert len(self._digest_of) == len(self._page_of), "two hashes name one page"
        assert self._cached.keys() <= self._digest_of.keys(), "a cached page has no hash"
        assert self._digest_of.keys().isdisjoint(self._free), "a free page is still registered"

    def _evict(self) -> int:
        """Unregister the least recently used cached page and return it."""
        page, _ = self._cached.popitem(last=False)
        digest = self._forget(page)
        if self._evicted:
            self._evicted(digest)
        return page

    def _forget(self, page: int) -> bytes:
        digest = self._digest_of.pop(page)
        del self._page_of[digest]
        return digest
