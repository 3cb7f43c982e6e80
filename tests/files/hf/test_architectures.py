"""What each architecture's config.json means in GGUF's terms, in older and newer spellings, and what it refuses."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phaseline.errors import FileFormatError, UnsupportedError
from phaseline.files.hf.architectures import layout_of
from phaseline.files.hf.config import Config
from phaseline.files.model_file import open_model_file
from support.folders import CONFIG, llama_tensors, write_folder

BASE: dict[str, Any] = {key: value for key, value in CONFIG.items() if key != "rope_theta"}
GEMMA = BASE | {"model_type": "gemma3_text", "head_dim": 8, "sliding_window": 64, "query_pre_attn_scalar": 16}
MIXTRAL = BASE | {"model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": None}
QWEN3_MOE = BASE | {
    **{"model_type": "qwen3_moe", "head_dim": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    **{"decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True},
}
DEEPSEEK = BASE | {
    **{"model_type": "deepseek_v3", "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    **{"n_group": 2, "topk_group": 1, "kv_lora_rank": 16, "q_lora_rank": None, "qk_nope_head_dim": 8},
    **{"qk_rope_head_dim": 8, "v_head_dim": 8, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
}
KIMI: dict[str, Any] = {
    **{"model_type": "kimi_linear", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 5},
    **{"num_attention_heads": 4, "vocab_size": 64, "model_max_length": 256, "rms_norm_eps": 1e-5, "num_experts": 6},
    **{"num_experts_per_token": 2, "moe_intermediate_size": 16, "num_shared_experts": 1, "routed_scaling_factor": 2.5},
    **{"moe_renormalize": True, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8},
}
KIMI_OWN = {"num_heads": 4, "head_dim": 8, "short_conv_kernel_size": 4}
GPT2 = {
    **{"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 64},
    **{"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "n_ctx": 64},
}


def keys(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return dict(layout_of(Config(config | changes, "config.json")).keys)


def test_what_the_larger_gpt_2_say_besides_changes_nothing() -> None:
    rest = {"n_special": 0, "predict_special_tokens": True, "output_past": True, "n_ctx": 64}
    assert keys(GPT2, **rest) == keys(GPT2)


def test_gemma_3_in_either_spelling() -> None:
    old = {"rope_theta": 5e5, "rope_local_base_freq": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    full = {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5}
    new = {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}}
    layers = ["sliding_attention"] * 5 + ["full_attention"] + ["sliding_attention"] * 2
    found = keys(GEMMA, num_hidden_layers=8, sliding_window_pattern=6, **old)
    assert found == keys(GEMMA, num_hidden_layers=8, layer_types=layers, rope_parameters=new)
    assert found["attention.sliding_window_pattern"] == [True] * 5 + [False] + [True] * 2
    assert (found["rope.freq_base"], found["rope.freq_base_swa"], found["rope.scaling.factor"]) == (5e5, 2e4, 8.0)
    assert found["attention.scale"] == 0.25
    plain = keys(GEMMA)
    assert (plain["rope.freq_base"], plain["rope.freq_base_swa"]) == (1e6, 1e4) and "rope.scaling.type" not in plain


def test_kimi_linear_as_published_and_as_resaved() -> None:
    """Also what only published folders say and the forward pass does not read."""
    own = KIMI_OWN | {"full_attn_layers": [3, 5], "kda_layers": [4, 1, 2]}
    rest = {"mla_use_nope": True, "moe_router_activation_func": "sigmoid", "first_k_dense_replace": 2}
    rest |= {"num_expert_group": 1, "topk_group": 1, "use_grouped_topk": True, "num_nextn_predict_layers": 0}
    published = keys(KIMI, linear_attn_config=own, rope_theta=1e4, rope_scaling=None, head_dim=72, **rest)
    kinds = ["linear_attention", "linear_attention", "full_attention", "linear_attention", "full_attention"]
    sizes = {"linear_num_heads": 4, "linear_head_dim": 8, "linear_conv_kernel_dim": 4, "layer_types": kinds}
    assert published == keys(KIMI, **sizes, mlp_layer_types=["dense", "dense", "sparse", "sparse", "sparse"])
    assert published["attention.head_count_kv"] == [0, 0, 1, 0, 1] and published["leading_dense_block_count"] == 2
    assert (published["kda.head_dim"], published["ssm.conv_kernel"]) == (8, 4)
    unlisted = keys(KIMI, **{key: value for key, value in sizes.items() if key != "layer_types"})
    assert unlisted["attention.head_count_kv"] == [0, 0, 0, 0, 1] and unlisted["leading_dense_block_count"] == 1


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"hidden_act": "situ"}, UnsupportedError, "hidden_act = 'situ'"),
        ({"mla_use_nope": False}, UnsupportedError, "mla_use_nope = False"),
        ({"routed_expert_hidden_size": 16}, UnsupportedError, "unknown setting 'routed_expert_hidden_size'"),
        ({"linear_attn_config": KIMI_OWN}, FileFormatError, "full_attn_layers is missing"),
        (
            {"linear_attn_config": KIMI_OWN | {"full_attn_layers": [3], "kda_layers": [1, 2, 3]}},
            FileFormatError,
            "must name each of 5 layers once",
        ),
        (
            {"linear_attn_config": KIMI_OWN | {"full_attn_layers": [0], "kda_layers": []}},
            FileFormatError,
            "whole numbers from 1 to 5",
        ),
        (
            {"linear_attn_config": KIMI_OWN | {"full_attn_layers": [], "kda_layers": [], "gate_lower_bound": -5.0}},
            UnsupportedError,
            "unknown setting 'gate_lower_bound'",
        ),
        (
            {"linear_attn_config": KIMI_OWN | {"num_heads": 2, "full_attn_layers": [], "kda_layers": []}},
            UnsupportedError,
            "num_heads = 2",
        ),
        ({"layer_types": ["full_attention"] * 4}, FileFormatError, "layer_types must name"),
        ({"mlp_layer_types": ["sparse", "dense", *["sparse"] * 3]}, FileFormatError, "a dense layer behind"),
    ],
)
def test_what_kimi_linear_is_not(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    sizes = {"linear_num_heads": 4, "linear_head_dim": 8, "linear_conv_kernel_dim": 4}
    with pytest.raises(error, match=message):
        keys(KIMI | sizes | changes)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        *[(config, "num_hidden_layers") for config in (BASE, GEMMA, QWEN3_MOE, DEEPSEEK, KIMI)],
        *[(config, "num_attention_heads") for config in (BASE, DEEPSEEK, KIMI)],
        *[(GPT2, "n_layer"), (GPT2, "n_head")],
    ],
)
def test_as_many_layers_or_heads_as_no_model_has(config: dict[str, Any], key: str) -> None:
    """Before a list is made for each."""
    with pytest.raises(FileFormatError, match=f"{key} is 4097; accepted: whole numbers 1 to 4096"):
        keys(config, **{key: 4097})


def test_experts_are_counted_in_either_spelling() -> None:
    found = keys(QWEN3_MOE, num_experts=4)
    assert found == keys(QWEN3_MOE, num_local_experts=4)
    assert (found["expert_count"], found["expert_used_count"], found["expert_weights_norm"]) == (4, 2, True)
    assert found["expert_feed_forward_length"] == 16


def test_gpt_2_has_no_rotation_and_four_times_the_width() -> None:
    found = keys(GPT2)
    assert found["feed_forward_length"] == 128 and not any(key.startswith("rope") for key in found)
    assert keys(GPT2, n_inner=100)["feed_forward_length"] == 100


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (BASE, {"model_type": "mistral"}, ""),  # a context shorter than the window that is meant where none is stated
    (BASE, {"model_type": "mistral", "max_position_embeddings": 8192}, "sliding_window = 4096 is not supported here"),
    (BASE, {"model_type": "mistral", "sliding_window": 64}, "sliding_window = 64 is not supported here"),
    (BASE, {"model_type": "mistral", "num_key_value_heads": None}, "num_key_value_heads is missing"),
    (BASE, {"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window = True is not supported"),
    (BASE, {"model_type": "qwen2", "layer_types": ["sliding_attention"] * 2}, "layer_types = ['sliding_attention'"),
    (BASE, {"model_type": "qwen3"}, "head_dim is missing"),
    (GEMMA, {"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0 is not supported"),
    (GEMMA, {"layer_types": ["full_attention"]}, "layer_types must name sliding_attention or full_attention"),
    (GEMMA, {"rope_parameters": {"rope_theta": 1e6}}, "rope_parameters: unknown setting 'rope_theta'"),
    (GEMMA, {"rope_parameters": {"full_attention": {}}}, "both full_attention and sliding_attention are needed"),
    (GEMMA, {"hidden_activation": "silu"}, "hidden_activation = 'silu' is not supported"),
    (MIXTRAL, {"sliding_window": 64}, "sliding_window = 64 is not supported here"),
    (MIXTRAL, {"num_experts_per_tok": 4}, "num_experts_per_tok is 4; accepted: whole numbers 1 to 3"),
    (QWEN3_MOE, {}, "num_local_experts is missing"),
    (QWEN3_MOE, {"num_experts": 4, "mlp_only_layers": [0]}, "mlp_only_layers = [0] is not supported"),
    (QWEN3_MOE, {"num_experts": 4, "decoder_sparse_step": 2}, "decoder_sparse_step = 2 is not supported"),
    (DEEPSEEK, {"scoring_func": "softmax"}, "scoring_func = 'softmax' is not supported"),
    (DEEPSEEK, {"rope_interleave": False}, "rope_interleave = False is not supported"),
    (DEEPSEEK, {"moe_layer_freq": 2}, "moe_layer_freq = 2 is not supported"),
    (DEEPSEEK, {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling: mscale_all_dim is missing"),
    (
        DEEPSEEK,
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "mscale_all_dim": 1.0, "mscale": 0.7}},
        "rope_scaling: mscale = 0.7 is not supported (supported: absent, 1.0)",
    ),
    (GPT2, {"activation_function": "gelu"}, "activation_function = 'gelu' is not supported"),
    (GPT2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True is not supported"),
    (GPT2, {"tie_word_embeddings": False}, "tie_word_embeddings = False is not supported"),
]


@pytest.mark.parametrize(("config", "change", "message"), REFUSED)
def test_what_would_be_another_model_is_refused(config: dict[str, Any], change: dict[str, Any], message: str) -> None:
    if not message:
        keys(config, **change)
        return
    with pytest.raises((FileFormatError, UnsupportedError), match=re.escape(message)):
        keys(config, **change)


def sparse_tensors() -> dict[str, Any]:
    """Mixtral's: two layers of three experts."""
    rng = np.random.default_rng(1)
    tensors = {name: values for name, values in llama_tensors().items() if ".mlp." not in name}
    for layer in range(2):
        moe = f"model.layers.{layer}.block_sparse_moe."
        tensors[moe + "gate.weight"] = rng.normal(size=(3, 32)).astype("<f4")
        for expert in range(3):
            for part, shape in (("w1", (48, 32)), ("w2", (32, 48)), ("w3", (48, 32))):
                tensors[f"{moe}experts.{expert}.{part}.weight"] = rng.normal(size=shape).astype("<f4")
    return tensors


EXPERT = "model.layers.1.block_sparse_moe.experts.2.w2.weight"


def test_experts_are_stacked_in_order(tmp_path: Path) -> None:
    tensors = sparse_tensors()
    reversed_order = dict(reversed(tensors.items()))
    file = open_model_file(write_folder(tmp_path / "m", shards=4, tensors=reversed_order, **MIXTRAL))
    assert file.tensors["blk.1.ffn_down_exps.weight"].shape == (3, 32, 48)
    for part, name in (("w1", "gate"), ("w2", "down"), ("w3", "up")):
        stacked = file.float32(f"blk.1.ffn_{name}_exps.weight")
        for expert in range(3):
            assert np.array_equal(stacked[expert], tensors[EXPERT.replace("2.w2", f"{expert}.{part}")])
    file.release("blk.1.ffn_down_exps.weight")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, "expert 2 of 'blk.1.ffn_down_exps.weight' is missing"),
        (np.zeros((32, 47), "<f4"), "differ in type or shape"),
        (np.zeros((32, 48), "<f2"), "differ in type or shape"),
    ],
)
def test_experts_must_be_there_and_alike(tmp_path: Path, values: Any, message: str) -> None:
    tensors = sparse_tensors()
    del tensors[EXPERT]
    if values is not None:
        tensors[EXPERT] = values
    with pytest.raises(FileFormatError, match=re.escape(message)):
        open_model_file(write_folder(tmp_path / "m", tensors=tensors, **MIXTRAL))


def test_an_expert_too_many_is_refused(tmp_path: Path) -> None:
    tensors = sparse_tensors()
    tensors[EXPERT.replace("experts.2", "experts.3")] = tensors[EXPERT]
    with pytest.raises(FileFormatError, match="3 must be under 3"):
        open_model_file(write_folder(tmp_path / "m", tensors=tensors, **MIXTRAL))


def test_layers_that_predict_further_tokens_are_left_out() -> None:
    layout = layout_of(Config(DEEPSEEK | {"num_nextn_predict_layers": 1}, "config.json"))
    assert (layout.keys["block_count"], layout.spare_layers) == (2, 1)
