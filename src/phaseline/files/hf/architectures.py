"""The model_type of a config.json -> how that model is laid out."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from phaseline.errors import UnsupportedError
from phaseline.files.hf import deepseek, dense, gemma3, kimi, sparse
from phaseline.files.hf.config import HARMLESS, Config
from phaseline.files.hf.layout import Layout

_LAYOUTS: Mapping[str, Callable[[Config], Layout]] = MappingProxyType(
    {
        "deepseek_v2": deepseek.deepseek_v2,
        "deepseek_v3": deepseek.deepseek_v3,
        "gemma3_text": gemma3.gemma3,
        "gpt2": dense.gpt2,
        "kimi_linear": kimi.kimi_linear,
        "llama": dense.llama,
        "mistral": dense.mistral,
        "mixtral": sparse.mixtral,
        "olmoe": sparse.olmoe,
        "qwen2": dense.qwen2,
        "qwen3": dense.qwen3,
        "qwen3_moe": sparse.qwen3_moe,
    }
)


def layout_of(config: Config) -> Layout:
    """The model that a config describes. Refuses any setting that nothing here reads, by its name."""
    config.only("is_encoder_decoder", False)
    if config.has("quantization_config"):
        raise UnsupportedError(f"{config.where}: quantization_config is not supported: use the model's 16-bit weights")
    layout = _LAYOUTS[config.choice("model_type", _LAYOUTS)](config)
    config.refuse_unread(HARMLESS)
    return layout
