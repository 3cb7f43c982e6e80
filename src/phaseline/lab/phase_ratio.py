"""The phase ratio of an engine: how much faster it reads than it writes, and what that says of it."""

from collections.abc import Mapping, Sequence
from typing import Any

ABOUT_ONE = 1.5  # a ratio below it is no more than reading token by token gives, with the LM head or without
LOW = 4.0  # below it, few rows share what a step reads


def phase_ratio(
    prefill: Sequence[Mapping[str, Any]],
    decode: Mapping[str, Any],
    marginal_tok_s: float | None,
    *,
    near: int = 256,
    walking: float = 1.0,
) -> dict[str, Any] | None:
    """Prefill tok/s at the length nearest to `near` over one stream's decode tok/s, with both sizes; None without rows.

    Rows have tokens, context and tok_s. `marginal_tok_s` is prefill's slope, which leaves fixed costs out. `walking`:
    the ratio that reading token by token would give, over 1 where that leaves out the LM head.
    """
    rows = [row for row in prefill if row["tok_s"]]
    if not rows or not decode["tok_s"]:
        return None
    at = min(rows, key=lambda row: abs(row["tokens"] - near))
    ratio = at["tok_s"] / decode["tok_s"]
    return {
        "prefill_tokens": at["tokens"],
        "prefill_tok_s": at["tok_s"],
        "marginal_tok_s": marginal_tok_s,
        "decode_context": decode["context"],
        "decode_tok_s": decode["tok_s"],
        "ratio": ratio,
        "marginal_ratio": marginal_tok_s / decode["tok_s"] if marginal_tok_s else None,
        "meaning": ratio_meaning(max(ratio, (marginal_tok_s or 0.0) / decode["tok_s"]), walking),
    }


def ratio_meaning(ratio: float, walking: float = 1.0) -> str:
    """In plain words; `walking` as in `phase_ratio`."""
    if ratio < ABOUT_ONE * walking:
        return (
            "about 1: this engine has no batched prefill. It reads a prompt token by token, at the speed at which it "
            "writes, and all weights are read again for each token. Prefill in chunks, whose rows share one reading of "
            "the weights, is a missing feature here, not a matter of tuning"
        )
    if ratio < LOW:
        return "low: the rows of a prompt share little of what a step costs, or decode is limited by arithmetic as well"
    return "well above 1: the rows of a prompt share what a step costs, so prefill is batched"
