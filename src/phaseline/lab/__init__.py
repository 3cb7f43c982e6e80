"""The lab measures prefill and decode. Its pure functions are public; what runs lives in the modules beside them."""

from phaseline.lab.calculator import (
    amortisable_share,
    attention_intensity,
    critical_batch,
    decode_floor,
    distinct_experts,
    kv_bytes,
    largest_batch,
    mlp_intensity,
    product_limit,
    step_time,
)
from phaseline.lab.metrics import chunk_schedule, goodput, phase_share, request_metrics

__all__ = [
    "amortisable_share",
    "attention_intensity",
    "chunk_schedule",
    "critical_batch",
    "decode_floor",
    "distinct_experts",
    "goodput",
    "kv_bytes",
    "largest_batch",
    "mlp_intensity",
    "phase_share",
    "product_limit",
    "request_metrics",
    "step_time",
]
