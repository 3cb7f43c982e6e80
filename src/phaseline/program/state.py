"""What a sequence must remember, as data: the executors lay it out, the pool allocates it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PagedKV:
    """Keys and values of `layers` attention layers that share one page list (one state group).

    A token costs layers * 2 * kv_heads * head_dim elements. Any full page is a point to resume from.
    """

    layers: int
    kv_heads: int
    head_dim: int

    def elements(self, tokens: int) -> int:
        """Stored elements for `tokens` positions."""
        return self.layers * 2 * self.kv_heads * self.head_dim * tokens
