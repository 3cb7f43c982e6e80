"""Tiny random Kimi Linear models: on disk, and the same weights in the `transformers` library, in float32."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.models import Model
from support.tiny import TinyWriter


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
            _latent(w, p, width, heads, (nope, pe, value, rank, q_rank), fused)
        w.vector(p + "ffn_norm.weight", width, 1.0)
        if n < dense:
            _gated(w, p, "", width, ff)
            continue
        w.values(p + "ffn_gate_inp.weight", rng.normal(0, 2 * width**-0.5, (experts, width)))
        w.vector(p + "exp_probs_b.bias", experts, std=0.2)
        w.stack(p + "ffn_gate_exps", experts, expert_ff, width)
        w.stack(p + "ffn_up_exps", experts, expert_ff, width)
        w.stack(p + "ffn_down_exps", experts, width, expert_ff, 2 * expert_ff**-0.5)
        if shared:
            _gated(w, p, "_shexp", width, expert_ff * shared)
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


def _latent(w: TinyWriter, p: str, width: int, heads: int, sizes: Sequence[int], fused: bool) -> None:
    nope, pe, value, rank, q_rank = sizes
    if q_rank:
        w.matrix(p + "attn_q_a", q_rank, width)
        w.vector(p + "attn_q_a_norm.weight", q_rank, 1.0)
    inputs = q_rank or width
    w.matrix(p + ("attn_q_b" if q_rank else "attn_q"), heads * (nope + pe), inputs, 2 * inputs**-0.5)
    w.matrix(p + "attn_kv_a_mqa", rank + pe, width)
    w.vector(p + "attn_kv_a_norm.weight", rank, 1.0, 0.3)
    if fused:
        w.matrix(p + "attn_kv_b", heads * (nope + value), rank)
    else:
        w.stack(p + "attn_k_b", heads, rank, nope)
        w.stack(p + "attn_v_b", heads, value, rank)
    w.matrix(p + "attn_output", width, heads * value, 3 * (heads * value) ** -0.5)


def _gated(w: TinyWriter, layer: str, end: str, width: int, ff: int) -> None:
    w.matrix(f"{layer}ffn_gate{end}", ff, width)
    w.matrix(f"{layer}ffn_up{end}", ff, width)
    w.matrix(f"{layer}ffn_down{end}", width, ff, 2 * ff**-0.5)


_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ssm_f_a": "self_attn.forget_gate.f_a_proj",
    "ssm_f_b": "self_attn.forget_gate.f_b_proj",
    "ssm_g_a": "self_attn.g_a_proj",
    "ssm_g_b": "self_attn.g_b_proj",
    "ssm_beta": "self_attn.b_proj",
    "ssm_norm": "self_attn.o_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


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
        vocab_size=spec.vocab,
        hidden_size=spec.width,
        intermediate_size=spec.ff,
        moe_intermediate_size=moe.ff,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.heads,
        n_shared_experts=moe.shared_ff // moe.ff,
        num_local_experts=moe.router.experts,
        num_experts_per_tok=moe.router.active,
        routed_scaling_factor=moe.router.scale,
        norm_topk_prob=moe.router.renormalise,
        kv_lora_rank=latent.rank,
        q_lora_rank=latent.q_rank or None,
        qk_rope_head_dim=latent.pe,
        v_head_dim=latent.value,
        qk_nope_head_dim=latent.nope,
        max_position_embeddings=spec.context,
        rms_norm_eps=spec.norm_eps,
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
    state = {}
    for name in file.tensors:
        stem, _, end = name.rpartition(".")
        part = stem.split(".")[-1]
        if stem in _ENDS:
            state[f"{_ENDS[stem]}.weight"] = file.float32(name)
        elif part in _LAYER:
            state[f"model.layers.{stem.split('.')[1]}.{_LAYER[part]}.{end}"] = file.float32(name)
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
        elif at + "attn_k_b.weight" in file.tensors:
            keys, values = file.float32(at + "attn_k_b.weight"), file.float32(at + "attn_v_b.weight")
            both = np.concatenate([keys.swapaxes(1, 2), values], axis=1)  # (heads, nope + value, rank)
            state[to + "self_attn.kv_b_proj.weight"] = both.reshape(-1, both.shape[-1])
        if at + "ffn_gate_exps.weight" in file.tensors:
            gate, up, down = (file.float32(f"{at}ffn_{part}_exps.weight") for part in ("gate", "up", "down"))
            state[to + "mlp.experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
            state[to + "mlp.experts.down_proj"] = down
            bias = file.float32(at + "exp_probs_b.bias")
            state[to + "mlp.gate.e_score_correction_bias"] = bias * (mistake != "no bias")
    return state
