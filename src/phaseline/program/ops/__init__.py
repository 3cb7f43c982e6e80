"""The op set: each class holds its shape rule, its cost, and its reference in numpy."""

from phaseline.program.ops.attention import Attend
from phaseline.program.ops.base import Context, Cost, Op, Span, Work
from phaseline.program.ops.experts import Experts, Route, Router, experts, route
from phaseline.program.ops.linear import Linear, RMSNorm, linear
from phaseline.program.ops.rope import Rope, RopeSpec
from phaseline.program.ops.rows import Embed, SelectRows

__all__ = [
    "Attend",
    "Context",
    "Cost",
    "Embed",
    "Experts",
    "Linear",
    "Op",
    "RMSNorm",
    "Rope",
    "RopeSpec",
    "Route",
    "Router",
    "SelectRows",
    "Span",
    "Work",
    "experts",
    "linear",
    "route",
]
