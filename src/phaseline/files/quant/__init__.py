"""Block formats of tensor data: one row per format with its size and its reference decode.

The layouts and formulas are those of ggml. A row of a tensor is cut into blocks along the last axis;
each block holds its own scales. Decoding is written for clarity and runs vectorised over blocks;
it is the specification that the kernels are tested against.
"""

from collections.abc import Mapping
from types import MappingProxyType

from phaseline.errors import UnsupportedError
from phaseline.files.quant import codebooks, grid, k, simple, ternary, values
from phaseline.files.quant.base import Bytes, Floats, Format, f16

__all__ = ["FORMATS", "Bytes", "Floats", "Format", "format_of_id"]

_TABLE = (
    Format("F32", 0, 1, 4, simple.f32),
    Format("F16", 1, 1, 2, f16),
    Format("Q4_0", 2, 32, 18, simple.q4_0),
    Format("Q4_1", 3, 32, 20, simple.q4_1),
    Format("Q5_0", 6, 32, 22, simple.q5_0),
    Format("Q5_1", 7, 32, 24, simple.q5_1),
    Format("Q8_0", 8, 32, 34, simple.q8_0),
    Format("Q2_K", 10, 256, 84, k.q2_k),
    Format("Q3_K", 11, 256, 110, k.q3_k),
    Format("Q4_K", 12, 256, 144, k.q4_k),
    Format("Q5_K", 13, 256, 176, k.q5_k),
    Format("Q6_K", 14, 256, 210, k.q6_k),
    Format("IQ2_XXS", 16, 256, 66, grid.iq2_xxs, codebooks.IQ2_XXS),
    Format("IQ2_XS", 17, 256, 74, grid.iq2_xs, codebooks.IQ2_XS),
    Format("IQ3_XXS", 18, 256, 98, grid.iq3_xxs, codebooks.IQ3_XXS),
    Format("IQ1_S", 19, 256, 50, grid.iq1_s, codebooks.IQ1),
    Format("IQ4_NL", 20, 32, 18, values.iq4_nl),
    Format("IQ3_S", 21, 256, 110, grid.iq3_s, codebooks.IQ3_S),
    Format("IQ2_S", 22, 256, 82, grid.iq2_s, codebooks.IQ2_S),
    Format("IQ4_XS", 23, 256, 136, values.iq4_xs),
    Format("IQ1_M", 29, 256, 56, grid.iq1_m, codebooks.IQ1),
    Format("BF16", 30, 1, 2, simple.bf16),
    Format("TQ1_0", 34, 256, 54, ternary.tq1_0),
    Format("TQ2_0", 35, 256, 66, ternary.tq2_0),
    Format("MXFP4", 39, 32, 17, values.mxfp4),
)
_BY_ID = MappingProxyType({f.id: f for f in _TABLE})

FORMATS: Mapping[str, Format] = MappingProxyType({f.name: f for f in _TABLE})

# Names of ggml types without a decode here, for the refusal.
_OTHER_TYPES = MappingProxyType(
    {9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 40: "NVFP4", 41: "Q1_0"}
)


def format_of_id(id: int) -> Format:
    """The format with ggml type number `id`; UnsupportedError names any other type and lists these."""
    if id not in _BY_ID:
        name = _OTHER_TYPES.get(id, "unknown")
        raise UnsupportedError(f"tensor type {name} (type {id}) is not supported; supported: {', '.join(FORMATS)}")
    return _BY_ID[id]
