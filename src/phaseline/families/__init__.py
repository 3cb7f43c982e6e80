"""From a file to a program: one module per family, chosen by the architecture that the file names."""

from phaseline.errors import FileFormatError, UnsupportedError
from phaseline.families import deepseek2, gemma3, gpt2, kimi_k3, kimi_linear, llama, olmoe, qwen2, qwen3
from phaseline.families.spec import ModelSpec
from phaseline.files.base import ModelFile
from phaseline.program.ir import Program

_FAMILIES = {
    "deepseek2": deepseek2,
    "gemma3": gemma3,
    "gpt2": gpt2,
    "kimi-k3": kimi_k3,
    "kimi-linear": kimi_linear,
    "llama": llama,
    "olmoe": olmoe,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen3moe": qwen3,
}


def model_program(file: ModelFile) -> tuple[ModelSpec, Program]:
    """Read the settings and build the program; an unknown architecture is refused by name."""
    arch = file.metadata.get("general.architecture")
    if not isinstance(arch, str):
        raise FileFormatError("general.architecture is missing from the file")
    family = _FAMILIES.get(arch)
    if family is None:
        raise UnsupportedError(f"architecture {arch!r} is not supported (supported: {', '.join(sorted(_FAMILIES))})")
    spec = family.spec_from(file.metadata, file.tensors)
    return spec, family.build(spec, file.tensors)
