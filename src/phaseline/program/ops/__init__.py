"""The op set: each class holds its shape rule, its cost, and its reference in numpy."""

from phaseline.program.ops.attention import Attend
from phaseline.program.ops.base import Context, Cost, Op, Span, Work
from phaseline.program.ops.delta import Decay, DeltaAttend
from phaseline.program.ops.experts import Experts, Route, Router, experts, route
from phaseline.program.ops.latent import HeadWeights, LatentAttend
from phaseline.program.ops.linear import Activation, Linear, linear
from phaseline.program.ops.mix import Gate, ResidualMix, gate, residual_mix
from phaseline.program.ops.norm import LayerNorm, Norm, Normalise, RMSNorm, normalise
from phaseline.program.ops.rope import Rope, RopeSpec, Yarn
from phaseline.program.ops.rows import Embed, SelectRows

__all__ = [
    "Activation",
    "Attend",
    "Context",
    "Cost",
    "Decay",
    "DeltaAttend",
    "Embed",
    "Experts",
    "Gate",
    "HeadWeights",
    "LatentAttend",
    "LayerNorm",
    "Linear",
    "Norm",
    "Normalise",
    "Op",
    "RMSNorm",
    "ResidualMix",
    "Rope",
    "RopeSpec",
    "Route",
    "Router",
    "SelectRows",
    "Span",
    "Work",
    "Yarn",
    "experts",
    "gate",
    "linear",
    "normalise",
    "residual_mix",
    "route",
]
