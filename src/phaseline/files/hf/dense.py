"""Dense decoders: what their config.json means, and what their tensors are called in GGUF."""

from typing import Any

from phaseline.errors import UnsupportedError
from phaseline.files.hf.config import MOST, Config
from phaseline.files.hf.layout import TRANSPOSE, Layout, Rule, neighbours
from phaseline.files.hf.rope import read_rope

# Buffers that older versions of transformers saved: they follow from the settings.
_BUFFERS = frozenset(["model.rotary_emb.inv_freq", "model.layers.*.self_attn.rotary_emb.inv_freq"])
_MISTRAL_WINDOW = 4096  # where a config does not state one; null states that there is none

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.*.input_layernorm": "blk.*.attn_norm",
    "model.layers.*.self_attn.q_proj": "blk.*.attn_q",
    "model.layers.*.self_attn.k_proj": "blk.*.attn_k",
    "model.layers.*.self_attn.v_proj": "blk.*.attn_v",
    "model.layers.*.self_attn.o_proj": "blk.*.attn_output",
    "model.layers.*.post_attention_layernorm": "blk.*.ffn_norm",
    "model.layers.*.mlp.gate_proj": "blk.*.ffn_gate",
    "model.layers.*.mlp.up_proj": "blk.*.ffn_up",
    "model.layers.*.mlp.down_proj": "blk.*.ffn_down",
}
HEAD_NORMS = {
    "model.layers.*.self_attn.q_norm": "blk.*.attn_q_norm",
    "model.layers.*.self_attn.k_norm": "blk.*.attn_k_norm",
}


def llama(config: Config) -> Layout:
    """Llama, SmolLM and their kin."""
    for key in ("attention_bias", "mlp_bias", "rope_interleaved"):
        config.only(key, False)
    config.ignore("is_llama_config")
    return decoder(config, "llama", turned=True, alike=True)


def mistral(config: Config) -> Layout:
    """Mistral is Llama, but for a window over which some of its models attend."""
    layout = decoder(config, "llama", turned=True)
    refuse_window(config, layout)
    return layout


def refuse_window(config: Config, layout: Layout) -> None:
    """Raise for a window that is shorter than the context: GGUF's llama has none."""
    window = config.integer("sliding_window", 0 if config.states("sliding_window") else _MISTRAL_WINDOW, low=0)
    if 0 < window < layout.keys["context_length"]:
        raise UnsupportedError(
            f"{config.where}: sliding_window = {window} is not supported here (supported: null, or the whole context)"
        )


def qwen2(config: Config) -> Layout:
    config.only("use_mrope", False)
    return _qwen(config, "qwen2")


def qwen3(config: Config) -> Layout:
    config.only("attention_bias", False)
    config.integer("head_dim")  # not what width and heads would make it
    return _qwen(config, "qwen3", HEAD_NORMS)


def _qwen(config: Config, arch: str, more: dict[str, str] | None = None) -> Layout:
    config.only("use_sliding_window", False)
    config.ignore("sliding_window", "max_window_layers")  # of the window that is not used
    config.only("layer_types", ["full_attention"] * config.integer("num_hidden_layers", high=MOST))
    return decoder(config, arch, more=more)


def decoder(
    config: Config,
    arch: str,
    *,
    turned: bool = False,
    more: "dict[str, str] | None" = None,
    ff: str = "intermediate_size",
    base: float = 10000.0,
    alike: bool = False,
) -> Layout:
    """What these decoders share: RMSNorm, grouped queries, rotary positions, a gated feed-forward.

    turned: GGUF stores query and key rows in the order that rotates neighbours. more: further names of tensors. ff,
    alike: see `sizes`. base: of the rotation, where the config does not say.
    """
    config.only("hidden_act", "silu")
    keys = sizes(config, ff, alike=alike)
    rope, factors = read_rope(config, keys["attention.key_length"], keys["context_length"], base)
    names: dict[str, str | Rule] = {**NAMES, **(more or {})}
    if turned:
        for name, heads in (("q", "attention.head_count"), ("k", "attention.head_count_kv")):
            names[f"model.layers.*.self_attn.{name}_proj"] = Rule(f"blk.*.attn_{name}", neighbours(keys[heads]))
    return Layout(
        arch=arch,
        keys=keys | {f"rope.{key}": value for key, value in rope.items()},
        names=names,
        vocab=config.integer("vocab_size"),
        tied=config.flag("tie_word_embeddings", False),
        unused=_BUFFERS,
        made={} if factors is None else {"rope_freqs.weight": factors},
    )


def sizes(config: Config, ff: str = "intermediate_size", *, alike: bool = False) -> dict[str, Any]:
    """The keys of a decoder's sizes; `ff` names its feed-forward width.

    alike: where the config does not say, there are as many key heads as query heads.
    """
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads", high=MOST)
    if not config.has("head_dim") and width % heads:
        raise UnsupportedError(f"{config.where}: hidden_size {width} does not split over {heads} heads")
    head_dim = config.integer("head_dim", width // heads)
    return {
        "block_count": config.integer("num_hidden_layers", high=MOST),
        "context_length": config.integer("max_position_embeddings"),
        "embedding_length": width,
        "feed_forward_length": config.integer(ff),
        "attention.head_count": heads,
        "attention.head_count_kv": config.integer("num_key_value_heads", heads if alike else None),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config.number("rms_norm_eps"),
    }


def gpt2(config: Config) -> Layout:
    """GPT-2: its matrices are stored (inputs, outputs), and turned round here."""
    config.only("activation_function", "gelu_new", "gelu_pytorch_tanh")  # two names of one function
    for key in ("scale_attn_weights", "tie_word_embeddings"):
        config.only(key, True)
    for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        config.only(key, False)
    config.ignore("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type")
    config.ignore("summary_use_proj", "n_ctx", "n_special", "predict_special_tokens", "output_past")
    width = config.integer("n_embd")
    keys = {
        "block_count": config.integer("n_layer", high=MOST),
        "context_length": config.integer("n_positions"),
        "embedding_length": width,
        "feed_forward_length": config.integer("n_inner", 4 * width),
        "attention.head_count": config.integer("n_head", high=MOST),
        "attention.layer_norm_epsilon": config.number("layer_norm_epsilon"),
    }
    names: dict[str, str | Rule] = {
        "wte": "token_embd",
        "wpe": "position_embd",
        "ln_f": "output_norm",
        "lm_head": "output",
        "h.*.ln_1": "blk.*.attn_norm",
        "h.*.attn.c_attn": Rule("blk.*.attn_qkv", TRANSPOSE),
        "h.*.attn.c_proj": Rule("blk.*.attn_output", TRANSPOSE),
        "h.*.ln_2": "blk.*.ffn_norm",
        "h.*.mlp.c_fc": Rule("blk.*.ffn_up", TRANSPOSE),
        "h.*.mlp.c_proj": Rule("blk.*.ffn_down", TRANSPOSE),
    }
    names |= {f"transformer.{name}": rule for name, rule in names.items() if name != "lm_head"}
    masks = [f"{prefix}h.*.attn.{mask}" for prefix in ("", "transformer.") for mask in ("bias", "masked_bias")]
    return Layout("gpt2", keys, names, config.integer("vocab_size"), True, frozenset(masks))
