"""What tiny random models of DeepSeek's kind share: latent attention and experts on disk, and the names that the
`transformers` library has for them."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.models import Model
from support.tiny import TinyWriter

LAYER: Mapping[str, str] = MappingProxyType(
    {
        "attn_q": "self_attn.q_proj",
        "attn_q_a": "self_attn.q_a_proj",
        "attn_q_a_norm": "self_attn.q_a_layernorm",
        "attn_q_b": "self_attn.q_b_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
        "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        "attn_kv_b": "self_attn.kv_b_proj",
        "attn_output": "self_attn.o_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "ffn_gate_inp": "mlp.gate",
        "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
        "ffn_up_shexp": "mlp.shared_experts.up_proj",
        "ffn_down_shexp": "mlp.shared_experts.down_proj",
    }
)
_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def write_latent(w: TinyWriter, p: str, width: int, heads: int, sizes: Sequence[int], fused: bool) -> None:
    """sizes: nope, pe, value, rank, q_rank. fused: keys and values of the latents in one tensor."""
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


def write_experts(
    w: TinyWriter, rng: np.random.Generator, p: str, width: int, count: int, ff: int, *, shared: int, biased: bool
) -> None:
    """A router, `count` experts of width `ff`, and as many of these as `shared` for every row."""
    w.values(p + "ffn_gate_inp.weight", rng.normal(0, 2 * width**-0.5, (count, width)))
    if biased:
        w.vector(p + "exp_probs_b.bias", count, std=0.2)
    w.stack(p + "ffn_gate_exps", count, ff, width)
    w.stack(p + "ffn_up_exps", count, ff, width)
    w.stack(p + "ffn_down_exps", count, width, ff, 2 * ff**-0.5)
    if shared:
        write_gated(w, p, "_shexp", width, ff * shared)


def write_gated(w: TinyWriter, layer: str, end: str, width: int, ff: int) -> None:
    w.matrix(f"{layer}ffn_gate{end}", ff, width)
    w.matrix(f"{layer}ffn_up{end}", ff, width)
    w.matrix(f"{layer}ffn_down{end}", width, ff, 2 * ff**-0.5)


def transformers_state(model: Model, names: Mapping[str, str] = LAYER) -> dict[str, NDArray[np.float32]]:
    """The model's tensors by the library's names, and in its shapes; `names`: of the parts of a layer."""
    file, state = model.file, {}
    for name in file.tensors:
        stem, _, end = name.rpartition(".")
        part = stem.split(".")[-1]
        if stem in _ENDS:
            state[f"{_ENDS[stem]}.weight"] = file.float32(name)
        elif part == "exp_probs_b":
            state[f"model.layers.{stem.split('.')[1]}.mlp.gate.e_score_correction_bias"] = file.float32(name)
        elif part in names:
            state[f"model.layers.{stem.split('.')[1]}.{names[part]}.{end}"] = file.float32(name)
    for n in range(model.spec.layers):
        at, to = f"blk.{n}.", f"model.layers.{n}."
        if at + "attn_k_b.weight" in file.tensors:
            keys, values = file.float32(at + "attn_k_b.weight"), file.float32(at + "attn_v_b.weight")
            both = np.concatenate([keys.swapaxes(1, 2), values], axis=1)  # (heads, nope + value, rank)
            state[to + "self_attn.kv_b_proj.weight"] = both.reshape(-1, both.shape[-1])
        if at + "ffn_gate_exps.weight" in file.tensors:
            gate, up, down = (file.float32(f"{at}ffn_{part}_exps.weight") for part in ("gate", "up", "down"))
            state[to + "mlp.experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
            state[to + "mlp.experts.down_proj"] = down
    return state


def transformers_sizes(model: Model) -> dict[str, Any]:
    """The settings that the library's configurations of such models call alike."""
    spec, latent, moe = model.spec, model.spec.latent, model.spec.moe
    assert latent is not None and moe is not None
    return {
        "vocab_size": spec.vocab,
        "hidden_size": spec.width,
        "intermediate_size": spec.ff,
        "moe_intermediate_size": moe.ff,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.heads,
        "n_shared_experts": moe.shared_ff // moe.ff,
        "num_experts_per_tok": moe.router.active,
        "routed_scaling_factor": moe.router.scale,
        "norm_topk_prob": moe.router.renormalise,
        "kv_lora_rank": latent.rank,
        "q_lora_rank": latent.q_rank or None,
        "qk_rope_head_dim": latent.pe,
        "qk_nope_head_dim": latent.nope,
        "v_head_dim": latent.value,
        "max_position_embeddings": spec.context,
        "rms_norm_eps": spec.norm_eps,
    }
