"""One latent attention over random queries and latents, its bound, and its equations in plain numpy."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phaseline.files.base import TensorInfo
from phaseline.program.ir import Program, Rows, Value
from phaseline.program.ops import HeadWeights, LatentAttend, RMSNorm, RopeSpec
from phaseline.program.state import PagedLatent
from support.bounds import attention_bound, gamma, product_bound
from support.memory_file import MemoryFile
from support.small_programs import Small

TOKENS = 256  # tokens that bring numbers; one more, NOTHING, brings NaN
NOTHING = TOKENS
EPS = 1e-5
Floats = NDArray[np.float64]


@dataclass
class Latent:
    """One latent attention over random queries and latents: token t brings row t of each."""

    heads: int
    nope: int
    pe: int
    rank: int
    value: int
    format: str = "F32"
    fused: bool = False
    turned: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.scale = (self.nope + self.pe) ** -0.5
        self.rope = RopeSpec(self.pe, 100.0) if self.turned else None
        self.q = rng.normal(size=(TOKENS + 1, self.heads, self.nope + self.pe)).astype(np.float32)
        self.c = rng.normal(size=(TOKENS + 1, self.rank + self.pe)).astype(np.float32)
        self.q[NOTHING] = self.c[NOTHING] = np.nan
        self.file = MemoryFile()
        self.norm = self.file.add("norm", rng.normal(1.0, 0.3, self.rank))
        heads, nope, rank, value = self.heads, self.nope, self.rank, self.value
        if self.fused:
            tensor = self.file.add_random(rng, "kv_b", self.format, heads * (nope + value), rank, rank**-0.5)
            self.k_b = HeadWeights(tensor, heads, 0, nope, transposed=True)
            self.v_b = HeadWeights(tensor, heads, nope, value)
        else:
            k = [self.file.add_random(rng, f"k_b{h}", self.format, rank, nope, nope**-0.5) for h in range(heads)]
            v = [self.file.add_random(rng, f"v_b{h}", self.format, value, rank, rank**-0.5) for h in range(heads)]
            self.k_b = HeadWeights(self.file.stack("k_b", k), heads, 0, rank)
            self.v_b = HeadWeights(self.file.stack("v_b", v), heads, 0, value)

    def program(self) -> Program:
        small = Small(self.file, (PagedLatent(1, self.rank + self.pe),))
        q, c = small.input("q", self.q.reshape(TOKENS + 1, -1)), small.input("c", self.c)
        out = Value("o", Rows.TOKENS, self.heads * self.value)
        norm = RMSNorm(self.norm, EPS)
        small.builder.add(LatentAttend(q, c, out, norm, self.rope, self.k_b, self.v_b, self.scale, 0))
        return small.finish([out], TOKENS + 1)

    @property
    def width(self) -> int:
        return self.heads * self.value

    def bound(self, tokens: Sequence[int], rows: int, stored: float) -> Floats:
        """For the last `rows` positions of a sequence, (rows, heads * value).

        A normed element has a relative error of gamma(rank / 8 + 16), a turned one an error of gamma(4) of both
        entries of its pair; the rest is products before and after, and attention between.
        """
        ids, split = list(tokens), self.nope
        q, c = self.q[ids[len(ids) - rows :]].astype(np.float64), self.c[ids].astype(np.float64)
        norm = self.file.float32("norm").astype(np.float64)
        latent = c[:, : self.rank] / np.sqrt((c[:, : self.rank] ** 2).mean(axis=1, keepdims=True) + EPS) * norm
        positions = np.arange(len(ids))
        pe = self.turn(q[..., split:], positions[len(ids) - rows :])
        row = np.concatenate([latent, self.turn(c[:, None, self.rank :], positions)[:, 0]], axis=1)[:, None]
        row_off = np.concatenate([gamma(self.rank // 8 + 16) * np.abs(latent), pair_off(c[:, self.rank :])], axis=1)
        k_b, v_b = self.weights("k_b"), self.weights("v_b")
        w = [self.file.float32(t.name).astype(np.float64) for t in (*k_b, *v_b)]
        absorbed = np.stack([q[:, h, :split] @ w[h].T for h in range(self.heads)], axis=1)
        absorbed_off = np.stack([product_bound(q[:, h, :split], self.file, k_b[h]) for h in range(self.heads)], axis=1)
        query, query_off = (
            np.concatenate(x, axis=2) for x in ((absorbed, pe), (absorbed_off, pair_off(q[..., split:])))
        )
        row_off = row_off[:, None]
        values, values_off = row[..., : self.rank], row_off[..., : self.rank]
        off = attention_bound(query, row, values, self.scale, stored, q_off=query_off, k_off=row_off, v_off=values_off)
        # What attention gives, as far off as it may be, times v_b.
        score = np.einsum("rhc,tc->rht", query, row[:, 0]) * self.scale
        hidden = positions > positions[len(ids) - rows :, None]
        p = np.where(
            hidden[:, None], 0, np.exp(score - np.where(hidden[:, None], -np.inf, score).max(axis=2, keepdims=True))
        )
        exact = np.einsum("rht,tc->rhc", p / p.sum(axis=2, keepdims=True), values[:, 0])
        parts = [
            product_bound(np.abs(exact[:, h]) + off[:, h], self.file, v_b[h]) + off[:, h] @ np.abs(w[self.heads + h]).T
            for h in range(self.heads)
        ]
        return np.concatenate(parts, axis=1)

    def turn(self, x: Floats, positions: NDArray[np.int64]) -> Floats:
        return self.rope.rotate(x, positions, {}) if self.rope else x

    def weights(self, name: str) -> list[TensorInfo]:
        """Each head's matrix as the kernel multiplies by it: what is transposed is in float32, or in its plain type."""
        of: HeadWeights = getattr(self, name)
        if not self.fused:
            return [self.file.tensors[f"{name}{h}"] for h in range(self.heads)]
        cut = of.cut(self.file.float32("kv_b"))
        if of.transposed or self.format == "F32":
            return [self.file.add(f"{name}{h}", part) for h, part in enumerate(cut)]
        raw = of.cut(self.file.raw("kv_b"))
        return [self.file.add_raw(f"{name}{h}", self.format, part, cut.shape[1:]) for h, part in enumerate(raw)]


def pair_off(x: Floats) -> Floats:
    """Of turned entries: their own pairs' sizes (2i, 2i + 1) added up, times four roundings."""
    pairs = np.abs(x).reshape(*x.shape[:-1], -1, 2).sum(axis=-1, keepdims=True)
    return gamma(4) * np.broadcast_to(pairs, (*pairs.shape[:-1], 2)).reshape(x.shape)


def plain_latent(a: Latent, tokens: Sequence[int], mistake: str) -> Floats:
    """All rows by the expanded equations, head by head, in plain numpy, with one mistake if asked."""
    ids = list(tokens)
    q, c, n = a.q[ids].astype(np.float64), a.c[ids].astype(np.float64), len(ids)
    norm = a.file.float32("norm").astype(np.float64)
    k_b, v_b = (w.cut(a.file.float32(w.tensor.name)).astype(np.float64) for w in (a.k_b, a.v_b))
    latent, split = c[:, : a.rank], a.nope
    if mistake != "no_norm":
        latent = latent / np.sqrt((latent**2).mean(axis=1, keepdims=True) + EPS) * norm
    positions = np.arange(n) + (mistake == "positions_shifted") * np.arange(n) // 7
    turn = (lambda x: a.turn(x[:, None], positions)[:, 0]) if mistake != "no_rope" else (lambda x: x)
    key_pe = turn(c[:, a.rank :])
    out = np.empty((n, a.heads, a.value))
    for h in range(a.heads):
        nope, pe = q[:, h, :split], turn(q[:, h, split:])
        if mistake == "rope_on_nope":
            nope, pe = np.concatenate([turn(q[:, h, : a.pe]), q[:, h, a.pe : split]], axis=1), q[:, h, split:]
        key, value = latent @ k_b[h], latent @ v_b[(h + (mistake == "next_head")) % a.heads].T
        score = (nope @ key.T + pe @ key_pe.T) * (split**-0.5 if mistake == "scale_of_nope" else a.scale)
        seen = np.arange(n) <= np.arange(n)[:, None] + (mistake == "sees_next")
        p = np.where(seen, np.exp(score), 0)
        out[:, h] = p @ value / p.sum(axis=1, keepdims=True)
    return out.reshape(n, -1)
