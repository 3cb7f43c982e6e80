"""Tiny random Kimi K3 models on disk, and their equations, row by row in plain numpy and float64."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.models import Model
from support.tiny import TinyWriter

Floats = NDArray[np.float64]


def write_kimi_k3(
    path: Path,
    *,
    format: str = "F32",
    formats: Mapping[str, str] | None = None,
    layers: int = 6,
    latent_layers: Sequence[int] = (3,),
    bank_every: int = 2,
    width: int = 64,
    heads: int = 4,
    dim: int = 16,
    taps: int = 4,
    nope: int = 24,
    pe: int = 8,
    value: int = 16,
    rank: int = 32,
    q_rank: int = 40,
    ff: int = 96,
    dense: int = 1,
    experts: int = 8,
    active: int = 3,
    expert_ff: int = 32,
    space: int = 48,
    shared: int = 2,
    vocab: int = 320,
    context: int = 1024,
    seed: int = 0,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write a random model; norms, routers, convolutions and what decays are F32. `space`: that of routed experts."""
    w = TinyWriter(path, "kimi-k3", vocab=vocab, format=format, formats=formats, seed=seed)
    rng, inner = np.random.default_rng(seed), heads * dim
    w.keys(
        context_length=context,
        embedding_length=width,
        block_count=layers,
        feed_forward_length=ff,
        attention__head_count=heads,
        attention__head_count_kv=[int(n in latent_layers) for n in range(layers)],
        attention__layer_norm_rms_epsilon=1e-6,
        attention__q_lora_rank=q_rank,
        attention__kv_lora_rank=rank,
        attention__key_length=rank + pe,
        attention__value_length=rank,
        attention__key_length_mla=nope + pe,
        attention__value_length_mla=value,
        rope__dimension_count=pe,
        vocab_size=vocab,
        ssm__conv_kernel=taps,
        kda__head_dim=dim,
        kda__gate_lower_bound=-5.0,
        leading_dense_block_count=dense,
        expert_count=experts,
        expert_used_count=active,
        expert_feed_forward_length=expert_ff,
        expert_shared_count=shared,
        expert_latent_length=space,
        expert_weights_scale=1.5,
        expert_weights_norm=True,
        expert_gating_func=2,
        activation__situ_beta=4.0,
        activation__situ_linear_beta=25.0,
        attn_res__block_size=bank_every,
    )
    w.metadata(extra or {})
    w.matrix("token_embd", vocab, width, 1.0)
    for n in range(layers):
        p = f"blk.{n}."
        for part in ("attn", "ffn"):
            w.vector(f"{p}{part}_norm.weight", width, 1.0)
            w.vector(f"{p}{part}_res_score.weight", width, std=0.2)  # scores of ordinary size, of either sign
        if n in latent_layers:
            w.matrix(p + "attn_q_a", q_rank, width)
            w.vector(p + "attn_q_a_norm.weight", q_rank, 1.0)
            w.matrix(p + "attn_q_b", heads * (nope + pe), q_rank, 2 * q_rank**-0.5)
            w.matrix(p + "attn_kv_a_mqa", rank + pe, width)
            w.vector(p + "attn_kv_a_norm.weight", rank, 1.0, 0.3)
            w.stack(p + "attn_k_b", heads, rank, nope)
            w.stack(p + "attn_v_b", heads, value, rank)
            w.matrix(p + "attn_gate", heads * value, width, 2 * width**-0.5)
            w.matrix(p + "attn_output", width, heads * value, 3 * (heads * value) ** -0.5)
        else:
            for part in "qkv":
                w.matrix(f"{p}attn_{part}", inner, width)
                w.values(f"{p}ssm_conv1d_{part}.weight", rng.normal(0, 0.6, (1, inner, 1, taps)))
            w.matrix(p + "ssm_f_a", dim, width)
            w.matrix(p + "ssm_f_b", inner, dim, 2 * dim**-0.5)
            w.matrix(p + "ssm_beta", heads, width)
            w.values(p + "ssm_a", -np.exp(rng.normal(0, 0.3, heads)))
            w.vector(p + "ssm_dt.bias", inner, -2.0, 1.0)
            w.matrix(p + "ssm_g", inner, width, 2 * width**-0.5)
            w.vector(p + "ssm_norm.weight", dim, 1.0, 0.3)
            w.matrix(p + "attn_output", width, inner, inner**-0.5)
        if n < dense:
            _gated(w, p, "", width, ff)
            continue
        w.values(p + "ffn_gate_inp.weight", rng.normal(0, 2 * width**-0.5, (experts, width)))
        w.vector(p + "exp_probs_b.bias", experts, std=0.3)
        w.stack(p + "ffn_gate_exps", experts, expert_ff, space, 2 * space**-0.5)
        w.stack(p + "ffn_up_exps", experts, expert_ff, space, 2 * space**-0.5)
        w.stack(p + "ffn_down_exps", experts, space, expert_ff, 2 * expert_ff**-0.5)
        w.matrix(p + "ffn_routed_down", space, width)
        w.matrix(p + "ffn_routed_up", width, space)
        w.vector(p + "ffn_routed_norm.weight", space, 1.0)
        _gated(w, p, "_shexp", width, expert_ff * shared)
    w.vector("output_norm.weight", width, 1.0)
    w.vector("output_res_score.weight", width, std=0.2)
    w.matrix("output", vocab, width, 2 * width**-0.5)
    return w.close()


def _gated(w: TinyWriter, layer: str, end: str, width: int, ff: int) -> None:
    w.matrix(f"{layer}ffn_gate{end}", ff, width, 3 * width**-0.5)
    w.matrix(f"{layer}ffn_up{end}", ff, width, 6 * width**-0.5)  # some of which level off
    w.matrix(f"{layer}ffn_down{end}", width, ff, ff**-0.5)


def sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


class Equations:
    """The block as it is published, one token after the other, one head after the other.

    `mistake`: one of MISTAKES. `moved`: each weight is off by up to as much of itself, at random.
    """

    MISTAKES = (
        "scores exchanged",
        "bank not emptied",
        "banked a layer late",
        "normed rows mixed",
        "row kept where it is banked",
        "biased shares",
        "no normed answer",
        "up without a limit",
        "gate on the wrong axis",
        "no output gate",
        "decay without a bound",
    )

    def __init__(self, model: Model, mistake: str = "", *, moved: float = 0.0) -> None:
        assert not mistake or mistake in self.MISTAKES
        self.spec, self.mistake = model.spec, mistake
        rng = np.random.default_rng(0)
        plain = {name: model.file.float32(name).astype(np.float64) for name in model.file.tensors}
        self.weights = {name: w * (1 + rng.uniform(-moved, moved, w.shape)) for name, w in plain.items()}
        self.eps, self.bank_every = model.spec.norm_eps, model.spec.bank_every  # type: ignore[attr-defined]

    def w(self, name: str) -> Floats:
        return self.weights[name]

    def rms(self, x: Floats, weight: Floats | float = 1.0) -> Floats:
        return x / np.sqrt(np.mean(x**2) + self.eps) * weight

    def logits(self, ids: Sequence[int]) -> Floats:
        """Of every position, (tokens, vocab)."""
        self.state: list[dict[str, Any]] = [{} for _ in range(self.spec.layers)]
        self.kept: list[Floats] = []
        return np.stack([self.token(i) for i in ids])

    def token(self, id: int) -> Floats:
        x, bank = self.w("token_embd.weight")[id], []
        if self.mistake == "bank not emptied":
            bank = self.kept
        first = 1 if self.mistake == "banked a layer late" else 0
        names = ("attn_res_score", "ffn_res_score")
        if self.mistake == "scores exchanged":
            names = names[::-1]
        for n in range(self.spec.layers):
            at = f"blk.{n}."
            a = self.mix(bank, x, self.w(f"{at}{names[0]}.weight"))
            banked = n % self.bank_every == first % self.bank_every
            if banked:
                bank.append(x)
            h = self.rms(a, self.w(at + "attn_norm.weight"))
            y = (self.delta if at + "ssm_a" in self.weights else self.latent)(at, h, self.state[n])
            x = y if banked and self.mistake != "row kept where it is banked" else x + y
            h = self.rms(self.mix(bank, x, self.w(f"{at}{names[1]}.weight")), self.w(at + "ffn_norm.weight"))
            x = x + self.feed_forward(at, h)
        last = self.rms(self.mix(bank, x, self.w("output_res_score.weight")), self.w("output_norm.weight"))
        return self.w("output.weight") @ last

    def mix(self, bank: Sequence[Floats], x: Floats, weight: Floats) -> Floats:
        rows = [*bank, x]
        e = np.exp([np.sum(self.rms(c) * weight) for c in rows])
        if self.mistake == "normed rows mixed":
            rows = [self.rms(c) for c in rows]
        out: Floats = sum(p * c for p, c in zip(e / e.sum(), rows, strict=True))  # type: ignore[assignment]
        return out

    def delta(self, at: str, h: Floats, state: dict[str, Any]) -> Floats:
        delta = self.spec.delta
        assert delta is not None
        heads, dim, taps = delta.heads, delta.dim, delta.taps
        state.setdefault("S", np.zeros((heads, dim, dim)))
        mixed = {}
        for part in "qkv":
            rows = state.setdefault(part, [np.zeros(heads * dim)] * taps)
            rows.append(self.w(f"{at}attn_{part}.weight") @ h)
            c = self.w(f"{at}ssm_conv1d_{part}.weight").reshape(heads * dim, taps)
            y = sum(c[:, i] * rows[len(rows) - taps + i] for i in range(taps))
            mixed[part] = (y * sigmoid(y)).reshape(heads, dim)  # type: ignore[arg-type]
        z = self.w(at + "ssm_g.weight") @ h
        r = self.w(at + "ssm_f_b.weight") @ (self.w(at + "ssm_f_a.weight") @ h) + self.w(at + "ssm_dt.bias")
        beta = sigmoid(self.w(at + "ssm_beta.weight") @ h)
        out = np.empty((heads, dim))
        for j in range(heads):
            q, k, v = (mixed[part][j] for part in "qkv")
            q, k = q / np.sqrt(np.sum(q**2) + 1e-6) / np.sqrt(dim), k / np.sqrt(np.sum(k**2) + 1e-6)
            grown = -self.w(at + "ssm_a")[j] * r.reshape(heads, dim)[j]  # the file keeps -e^a
            g = -5 * sigmoid(grown)
            if self.mistake == "decay without a bound":
                g = self.w(at + "ssm_a")[j] * np.log1p(np.exp(r.reshape(heads, dim)[j]))
            s = np.exp(g)[:, None] * state["S"][j]
            s = s + np.outer(k, beta[j] * (v - s.T @ k))
            state["S"][j] = s
            out[j] = self.rms(s.T @ q, self.w(at + "ssm_norm.weight"))
        return self.w(at + "attn_output.weight") @ (out.ravel() * sigmoid(self.turned(z, heads)))

    def latent(self, at: str, h: Floats, state: dict[str, Any]) -> Floats:
        """Expanded: each head with keys and values of its own."""
        spec = self.spec.latent
        assert spec is not None
        heads = self.spec.heads
        q = self.w(at + "attn_q_b.weight") @ self.rms(
            self.w(at + "attn_q_a.weight") @ h, self.w(at + "attn_q_a_norm.weight")
        )
        c = self.w(at + "attn_kv_a_mqa.weight") @ h
        rows = state.setdefault("rows", [])
        rows.append((self.rms(c[: spec.rank], self.w(at + "attn_kv_a_norm.weight")), c[spec.rank :]))
        latents, shared = (np.stack(part) for part in zip(*rows, strict=True))
        out = np.empty((heads, spec.value))
        for j in range(heads):
            own = q.reshape(heads, -1)[j]
            keys = latents @ self.w(at + "attn_k_b.weight")[j]  # (tokens, nope)
            score = (keys @ own[: spec.nope] + shared @ own[spec.nope :]) / np.sqrt(spec.nope + spec.pe)
            p = np.exp(score - score.max())
            out[j] = (p / p.sum()) @ (latents @ self.w(at + "attn_v_b.weight")[j].T)
        z = self.turned(self.w(at + "attn_gate.weight") @ h, heads)
        return self.w(at + "attn_output.weight") @ (
            out.ravel() * (1.0 if self.mistake == "no output gate" else sigmoid(z))
        )

    def turned(self, z: Floats, heads: int) -> Floats:
        return z.reshape(heads, -1).T.ravel() if self.mistake == "gate on the wrong axis" else z

    def feed_forward(self, at: str, h: Floats) -> Floats:
        if at + "ffn_gate.weight" in self.weights:
            return self.network(*(self.w(f"{at}ffn_{part}.weight") for part in ("gate", "up", "down")), h)
        moe = self.spec.moe
        assert moe is not None
        p = sigmoid(self.w(at + "ffn_gate_inp.weight") @ h)
        biased = p + self.w(at + "exp_probs_b.bias")
        chosen = sorted(range(len(p)), key=lambda e: (-biased[e], e))[: moe.router.active]
        shares = (biased if self.mistake == "biased shares" else p)[chosen]
        shares = shares / max(shares.sum(), 2.0**-14) * moe.router.scale
        u, total = self.w(at + "ffn_routed_down.weight") @ h, np.zeros(moe.latent)
        stacks = [self.w(f"{at}ffn_{part}_exps.weight") for part in ("gate", "up", "down")]
        for share, e in zip(shares, chosen, strict=True):
            total += share * self.network(*(stack[e] for stack in stacks), u)
        if self.mistake != "no normed answer":
            total = self.rms(total, self.w(at + "ffn_routed_norm.weight"))
        answer = self.w(at + "ffn_routed_up.weight") @ total
        return answer + self.network(*(self.w(f"{at}ffn_{part}_shexp.weight") for part in ("gate", "up", "down")), h)

    def network(self, gate: Floats, up: Floats, down: Floats, h: Floats) -> Floats:
        g, u = gate @ h, up @ h
        limited = u if self.mistake == "up without a limit" else 25 * np.tanh(u / 25)
        return np.asarray(down @ (4 * np.tanh(g / 4) * sigmoid(g) * limited))
