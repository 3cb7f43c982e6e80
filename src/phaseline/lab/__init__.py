"""The lab measures prefill and decode. Its pure functions are public; what runs lives in the modules beside them."""

from phaseline.lab.metrics import chunk_schedule, goodput, phase_share, request_metrics

__all__ = ["chunk_schedule", "goodput", "phase_share", "request_metrics"]
