"""Mixtures of experts: what a file says of its routers, and the feed-forward block they make."""

from phaseline.errors import FileFormatError
from phaseline.families.blocks import Decoder
from phaseline.families.spec import MoeSpec, Settings
from phaseline.program.ir import Value
from phaseline.program.ops import Activation, Router, experts, linear, route

_SCORES = {1: "softmax", 2: "sigmoid"}


def read_moe(s: Settings, ff: int, *, renormalise: bool, scores: str = "softmax") -> MoeSpec | None:
    """The `expert_*` keys; None where there are no experts. What the file leaves open is as the family has it.

    `ff` is the width of an expert that is not stated apart. A group of experts counts as its best where scores are
    softmax (DeepSeek-V2), as its best two where they are sigmoid (DeepSeek-V3).
    """
    count = s.integer("expert_count", 0, low=0, high=1 << 16)
    if not count:
        s.only("expert_used_count", 0)
        return None
    active = s.integer("expert_used_count", high=count)
    ff = s.integer("expert_feed_forward_length", ff)
    shared = s.integer("expert_shared_count", 0, low=0, high=1 << 10)
    groups = s.integer("expert_group_count", 1, high=count)
    scores = _SCORES.get(s.only("expert_gating_func", *_SCORES), scores)
    stated = s.only("expert_weights_norm", True, False)
    router = Router(
        count,
        active,
        scores,
        groups=groups,
        kept_groups=s.integer("expert_group_used_count", groups, high=groups),
        group_best=2 if scores == "sigmoid" and groups > 1 else 1,
        renormalise=renormalise if stated is None else stated,
        scale=s.number("expert_weights_scale", 1.0, low=-1e-9) or 1.0,  # some writers say 0 for none
    )
    shared_ff = s.integer("expert_shared_feed_forward_length", shared * ff, low=0)
    if shared and not shared_ff:
        raise FileFormatError(f"{s.arch}: {shared} shared experts of no width")
    return MoeSpec(router, ff, shared_ff, s.integer("leading_dense_block_count", 0, low=0))


def mixture(d: Decoder, x: Value, *, source: Value | None = None, activation: Activation = Activation.SILU) -> Value:
    """x plus what its experts answer, and the shared experts, all on the normed `source`, or on x itself; a plain gated
    block in the layers that have no experts. Routed experts that work in a space of their own read and answer there,
    and their answer is normed on its way back."""
    moe, source = d.spec.moe, source or x
    if moe is None or d.b.layer < moe.dense_layers:
        return d.gated(x, source=source, activation=activation)
    b, norm, count, inner = d.b, d.norm("ffn_norm"), moe.router.experts, moe.latent or x.width
    parts = {"ffn_gate_inp": count} | ({"ffn_routed_down": inner} if moe.latent else {})
    matrices = [d.matrix(part, outputs, x.width) for part, outputs in parts.items()]
    logits, *latent = linear(b, source, matrices, ("logits", "u")[: len(parts)], norm=norm)
    bias = b.weight(d.name("exp_probs_b.bias"), count) if b.has(d.name("exp_probs_b.bias")) else None
    chosen = route(b, logits, moe.router, bias)
    y = x
    if moe.shared_ff:
        gate_up = [d.matrix(part, moe.shared_ff, x.width) for part in ("ffn_gate_shexp", "ffn_up_shexp")]
        (h,) = linear(b, source, gate_up, ("h",), norm=norm, gate=activation)
        y = d.close(h, "ffn_down_shexp", x, name="y")
    gate, up = (b.weight(d.name(f"ffn_{part}_exps.weight"), count, moe.ff, inner) for part in ("gate", "up"))
    stacks = (gate, up, b.weight(d.name("ffn_down_exps.weight"), count, inner, moe.ff))
    if not moe.latent:
        return experts(b, source, stacks, chosen, "x", norm=norm, residual=y, activation=activation)
    e = experts(b, latent[0], stacks, chosen, "e", activation=activation)
    up = d.matrix("ffn_routed_up", x.width, inner)
    (out,) = linear(b, e, [up], ("x",), norm=d.norm("ffn_routed_norm", inner), residual=y)
    return out
