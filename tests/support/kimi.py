"""Tiny random Kimi Linear models: on disk, and the same weights in the `transformers` library, in float32."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.models import Model
from support.tiny import TinyWriter
from support.tiny_latent import (
    LAYER,
    transformers_sizes,
    transformers_state,
    write_experts,
    write_gated,
    write_latent,
)


def write_kimi(
    path: Path,
    *,
    format: str = "F32",
    recurrent: Sequence[bool] = (True, True, True, False, True),
    width: int = 64,
    heads: int = 4,
    dim: int = 16,
    taps: int = 4,
    nope: int = 32,
    pe: int = 16,
    value: int = 32,
    rank: int = 64,
    q_rank: int = 0,
    ff: int = 96,
    dense: int = 1,
    experts: int = 8,
    active: int = 3,
    expert_ff: int = 32,
    shared: int = 1,
    vocab: int = 320,
    context: int = 1536,
    fused: bool = False,
    harsh: bool = False,
    seed: int = 0,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write a random model of those layers; norms, routers, convolutions and decays are F32.

    fused: keys and values of the latents in one tensor. harsh: a third of the channels forget all but e^-60 in a row.
    """
    rng, w = np.random.default_rng(seed), TinyWriter(path, "kimi-linear", vocab=vocab, format=format, seed=seed)
    w.keys(
        context_length=context,
        embedding_length=width,
        block_count=len(recurrent),
        feed_forward_length=ff,
        attention__head_count=heads,
        attention__head_count_kv=[int(not r) for r in recurrent],
        attention__key_length=rank + pe,
        attention__value_length=width // heads,  # as converters have it, of no meaning
        attention__key_length_mla=nope + pe,
        attention__value_length_mla=value,
        attention__kv_lora_rank=rank,
        attention__layer_norm_rms_epsilon=1e-5,
        rope__dimension_count=pe,
        rope__freq_base=10000.0,
        ssm__conv_kernel=taps,
        kda__head_dim=dim,
        vocab_size=vocab,
        leading_dense_block_count=dense,
        expert_count=experts,
        expert_used_count=active,
        expert_feed_forward_length=expert_ff,
        expert_shared_count=shared,
        expert_weights_scale=2.446,
        expert_gating_func=2,
    )
    if q_rank:
        w.keys(attention__q_lora_rank=q_rank)
    w.metadata(extra or {})
    w.matrix("token_embd", vocab, width, 1.0)
    for n, carries in enumerate(recurrent):
        p = f"blk.{n}."
        w.vector(p + "attn_norm.weight", width, 1.0)
        if carries:
            _delta(w, rng, p, width, heads, dim, taps, harsh)
        else:
            write_latent(w, p, width, heads, (nope, pe, value, rank, q_rank), fused)
        w.vector(p + "ffn_norm.weight", width, 1.0)
        if n < dense:
            write_gated(w, p, "", width, ff)
        else:
            write_experts(w, rng, p, width, experts, expert_ff, shared=shared, biased=True)
    w.vector("output_norm.weight", width, 1.0)
    w.matrix("output", vocab, width, 2 * width**-0.5)
    return w.close()


def _delta(
    w: TinyWriter, rng: np.random.Generator, p: str, width: int, heads: int, dim: int, taps: int, harsh: bool
) -> None:
    inner = heads * dim
    for part in "qkv":
        w.matrix(p + f"attn_{part}", inner, width)
        w.values(p + f"ssm_conv1d_{part}.weight", rng.normal(0, taps**-0.5, (1, inner, 1, taps)))
    for part in "fg":
        w.matrix(p + f"ssm_{part}_a", dim, width)
        w.matrix(p + f"ssm_{part}_b", inner, dim)
    w.matrix(p + "ssm_beta", heads, width)
    w.values(p + "ssm_a", -np.exp(rng.normal(0, 0.5, (1, 1, heads, 1))))
    shift = rng.normal(-3, 1, inner)
    w.values(p + "ssm_dt.bias", np.where(rng.random(inner) < 1 / 3, 60.0, shift) if harsh else shift)
    w.vector(p + "ssm_norm.weight", dim, 1.0)
    w.matrix(p + "attn_output", width, inner, 3 * inner**-0.5)


_LAYER = {
    **LAYER,
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "ssm_f_a": "self_attn.forget_gate.f_a_proj",
    "ssm_f_b": "self_attn.forget_gate.f_b_proj",
    "ssm_g_a": "self_attn.g_a_proj",
    "ssm_g_b": "self_attn.g_b_proj",
    "ssm_beta": "self_attn.b_proj",
    "ssm_norm": "self_attn.o_norm",
}


def transformers_kimi(model: Model, *, mistake: str = "") -> Any:
    """The model's settings and weights in the library's class.

    `mistake`: "no bias" forgets what selects experts, "unlike decays" gives the heads' rates to one another, "late
    taps" turns a convolution round, "no output gate" lets everything through by half.
    """
    import torch
    from transformers import KimiLinearConfig, KimiLinearForCausalLM

    spec, latent, delta, moe = model.spec, model.spec.latent, model.spec.delta, model.spec.moe
    assert latent is not None and delta is not None and moe is not None
    config = KimiLinearConfig(
        **transformers_sizes(model),
        num_local_experts=moe.router.experts,
        linear_head_dim=delta.dim,
        linear_num_heads=delta.heads,
        linear_conv_kernel_dim=delta.taps,
        layer_types=["linear_attention" if carries else "full_attention" for carries in delta.layers],
        mlp_layer_types=["dense" if n < moe.dense_layers else "sparse" for n in range(spec.layers)],
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=None,
        use_cache=False,  # which the library has not for layers of one kind
    )
    net = KimiLinearForCausalLM(config)
    net.load_state_dict({name: torch.tensor(v) for name, v in _state(model, mistake).items()}, strict=True)
    return net.train(False)


def _state(model: Model, mistake: str) -> dict[str, NDArray[np.float32]]:
    file, spec = model.file, model.spec
    state = transformers_state(model, _LAYER)
    assert spec.delta is not None
    for n, carries in enumerate(spec.delta.layers):
        at, to = f"blk.{n}.", f"model.layers.{n}."
        if carries:
            turned = slice(None, None, -1 if mistake == "late taps" else 1)
            taps = [file.float32(f"{at}ssm_conv1d_{part}.weight").reshape(-1, 1, spec.delta.taps) for part in "qkv"]
            state[to + "self_attn.conv1d.weight"] = np.concatenate(taps)[..., turned].copy()
            rate = np.log(-file.float32(at + "ssm_a").reshape(1, 1, -1, 1))
            state[to + "self_attn.forget_gate.A_log"] = np.roll(rate, mistake == "unlike decays", axis=2)
            state[to + "self_attn.forget_gate.dt_bias"] = file.float32(at + "ssm_dt.bias")
            if mistake == "no output gate":
                state[to + "self_attn.g_b_proj.weight"] *= 0
    if mistake == "no bias":
        state |= {name: 0 * values for name, values in state.items() if name.endswith("e_score_correction_bias")}
    return state
