"""How many experts a step reads, on paper."""

import math


def distinct_experts(experts: int, active: int, rows: float) -> float:
    """Experts that `rows` rows are expected to touch, each choosing `active` of `experts` uniformly and on its own.

    E(1 - (1 - k/E)^C), at most min(kC, E). Real routing is skewed and touches fewer.
    """
    return min(experts * (1 - math.pow(1 - active / experts, rows)), active * rows, experts)
