"""Hardware for the paper calculator: published peaks, and this machine by its measured ceilings."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from phaseline.errors import RequestError, UnsupportedError

THIS = "this"
_MOST_CHIPS = 1 << 20
_MOST_READ = 512 << 20  # bytes that a measurement of this machine reads again and again


@dataclass(frozen=True)
class Hardware:
    """`count` chips: arithmetic by type in FLOP/s, bandwidth in bytes per second, memory in bytes; of all together.

    attention: the type that attention computes in, whatever the products do.
    """

    name: str
    peaks: Mapping[str, float]
    bandwidth: float
    memory: float
    source: str
    attention: str = "bf16"
    count: int = 1

    def times(self, count: int) -> "Hardware":
        """As many chips, as if they were one."""
        if not 1 <= count <= _MOST_CHIPS:
            raise RequestError(f"count = {count}: it must be a whole number from 1 to {_MOST_CHIPS}")
        peaks = {kind: peak * count for kind, peak in self.peaks.items()}
        return replace(
            self, peaks=peaks, bandwidth=self.bandwidth * count, memory=self.memory * count, count=self.count * count
        )

    def peak(self, compute: str) -> float:
        """FLOP/s in this type; UnsupportedError names the types there are."""
        if compute not in self.peaks:
            raise UnsupportedError(f"{self.name} has no peak for {compute}; it has {', '.join(self.peaks)}")
        return self.peaks[compute]

    def record(self) -> dict[str, Any]:
        """Plain data for a record."""
        return asdict(self) | {"peaks": dict(self.peaks)}


# Per chip, dense: where a datasheet gives tensor-core rates with sparsity, half of them. Decimal units throughout.
_HOPPER = {"bf16": 989e12, "fp8": 1979e12, "int8": 1979e12}
HARDWARE: Mapping[str, Hardware] = MappingProxyType(
    {
        chip.name: chip
        for chip in (
            # NVIDIA H100 Tensor Core GPU datasheet, SXM column
            Hardware("h100", _HOPPER, 3.35e12, 80e9, "NVIDIA's datasheet of the H100 SXM"),
            # NVIDIA H200 Tensor Core GPU datasheet, SXM column
            Hardware("h200", _HOPPER, 4.8e12, 141e9, "NVIDIA's datasheet of the H200 SXM"),
            # NVIDIA A100 Tensor Core GPU datasheet, 80GB SXM column
            Hardware("a100", {"bf16": 312e12, "int8": 624e12}, 2.039e12, 80e9, "NVIDIA's datasheet of the A100 80GB"),
            # Google Cloud TPU documentation, page "TPU v5e"
            Hardware("tpu-v5e", {"bf16": 197e12, "int8": 393e12}, 819e9, 16e9, "Google's documentation of TPU v5e"),
        )
    }
)
NAMES = (*HARDWARE, THIS)


def hardware_named(name: str, footprint: float) -> Hardware:
    """One chip of the table, or this machine, measured while it reads `footprint` bytes (of weights) over and over."""
    if name in HARDWARE:
        return HARDWARE[name]
    if name != THIS:
        raise UnsupportedError(f"hardware {name!r} is not in the table; it has {', '.join(NAMES)}")
    from phaseline.machine import host_rates

    rates = host_rates(int(min(max(footprint, 1 << 20), _MOST_READ)))
    peaks = {"f32": rates.float_flops, "quant": rates.quant_flops}
    source = f"just now, with {rates.threads} threads and {rates.level}"
    return Hardware(THIS, peaks, rates.read, rates.memory, source, attention="f32")
