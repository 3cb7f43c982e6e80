"""How a file states its rotary positions, and how they are stretched over a longer context."""

import math

from phaseline.errors import FileFormatError
from phaseline.families.spec import Settings
from phaseline.program.ops import RopeSpec, Yarn


def read_rope(s: Settings, head_dim: int, context: int, *, halves: bool, base: float = 10000.0) -> RopeSpec:
    """The `rope.*` keys of an architecture whose pairs are neighbours or, with `halves`, half a rotation's width apart.
    `base` is where the file states none.

    Llama 3's factors are no key but a tensor of the file: the decoder's blocks read it.
    """
    dims = s.integer("rope.dimension_count", head_dim, high=1024)
    if dims % 2 or dims > head_dim:
        raise FileFormatError(f"{s.arch}: rope.dimension_count {dims} must be even and within {head_dim}")
    base = s.number("rope.freq_base", base, low=1.0)
    kind = s.only("rope.scaling.type", "none", "linear", "yarn") or "linear"
    factor = s.number("rope.scaling.factor", 1.0, low=-1e-9) or 1.0  # some writers say 0 for none
    original = s.integer("rope.scaling.original_context_length", context)
    s.only("rope.scaling.finetuned", True, False)  # how the model was made, not how it runs
    if kind == "yarn":
        return RopeSpec(dims, base, halves, yarn=_read_yarn(s, factor, original))
    return RopeSpec(dims, base, halves, stretch=factor if kind == "linear" else 1.0)


def _read_yarn(s: Settings, factor: float, original: int) -> Yarn:
    """Scores grow by (0.1 ln(factor) + 1)^2, unless the file asks for more."""
    s.only("rope.scaling.yarn_ext_factor", 1.0)
    grown = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return Yarn(
        factor,
        original,
        fast=s.number("rope.scaling.yarn_beta_fast", 32.0),
        slow=s.number("rope.scaling.yarn_beta_slow", 1.0),
        magnitude=grown * s.number("rope.scaling.attn_factor", 1.0),
    )
