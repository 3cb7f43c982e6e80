from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

PAGE: int
MAX_TAPS: int

def levels() -> list[str]: ...
def known_levels() -> list[str]: ...
def trust_tiles() -> None: ...

class Team:
    def __init__(self, threads: int) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def active(self) -> int: ...

class Crew:
    def __init__(self, threads: int) -> None: ...
    @property
    def size(self) -> int: ...
    def note(self, wall: float, lost: float) -> None: ...

class Matrix:
    @property
    def nbytes(self) -> int: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    def row(self, row: int, out: NDArray[np.float32]) -> None: ...

class Store: ...

def packed_bytes(format: str, rows: int, cols: int) -> int: ...
def pack(
    format: str,
    raw: NDArray[np.uint8],
    cols: int,
    team: Team,
    store: Store,
    codebook: NDArray[np.uint8] | None = None,
) -> Matrix: ...

class Norm:
    def __init__(self, weight: Sequence[float], bias: Sequence[float], eps: float) -> None: ...

class Act(Enum):
    NONE = 0
    SILU = 1
    GELU = 2
    SITU = 3

class Plan:
    def __init__(self, team: Team, level: str, max_rows: int, max_wanted: int) -> None: ...
    @property
    def level(self) -> str: ...
    def add_group(self, pages: int, window: int | None = None, recurrent: bool = False) -> None: ...
    def add_value(self, width: int, wanted: bool, column: int) -> int: ...
    def add_output(self, width: int) -> int: ...
    def add_embed(self, table: Matrix, out: int, scale: float, positions: Matrix | None, layer: int) -> None: ...
    def add_select(self, x: int, out: int, layer: int) -> None: ...
    def add_normalise(self, x: int, out: int, norm: Norm, residual: int, layer: int) -> None: ...
    def add_gate(self, x: int, gate: int, out: int, layer: int) -> None: ...
    def add_residual_mix(
        self, rows: Sequence[int], out: int, weight: Sequence[float], eps: float, layer: int
    ) -> None: ...
    def add_rope(
        self,
        x: int,
        out: int,
        head_dim: int,
        frequencies: Sequence[float],
        magnitude: float,
        halves: bool,
        layer: int,
    ) -> None: ...
    def add_linear(
        self,
        x: int,
        weights: Sequence[Matrix],
        outs: Sequence[int],
        norm: Norm | None,
        biases: Sequence[Sequence[float]],
        gate: Act,
        act: Act,
        residual: int,
        layer: int,
    ) -> None: ...
    def add_attend(
        self,
        q: int,
        k: int,
        v: int,
        out: int,
        keys: NDArray[Any],
        values: NDArray[Any],
        group: int,
        kv_layer: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        window: int | None,
        scale: float,
        layer: int,
    ) -> None: ...
    def add_route(
        self,
        logits: int,
        chosen: int,
        shares: int,
        bias: Sequence[float],
        softmax: bool,
        groups: int,
        kept_groups: int,
        group_best: int,
        renormalise: bool,
        scale: float,
        layer: int,
    ) -> None: ...
    def add_experts(
        self,
        gate: Matrix,
        up: Matrix,
        down: Matrix,
        experts: int,
        x: int,
        chosen: int,
        shares: int,
        out: int,
        norm: Norm | None,
        residual: int,
        act: Act,
        layer: int,
    ) -> None: ...
    def add_latent(
        self,
        q: int,
        c: int,
        out: int,
        rows: NDArray[Any],
        group: int,
        latent_layer: int,
        k_b: Sequence[Matrix],
        v_b: Sequence[Matrix],
        norm: Norm,
        frequencies: Sequence[float],
        magnitude: float,
        halves: bool,
        scale: float,
        layer: int,
    ) -> None: ...
    def add_delta(
        self,
        q: int,
        k: int,
        v: int,
        decay: int,
        beta: int,
        gate: int,
        out: int,
        state: NDArray[Any],
        window: NDArray[Any],
        group: int,
        delta_layer: int,
        taps: NDArray[np.float32],
        rate: Sequence[float],
        shift: Sequence[float],
        lowest: float | None,
        unit_eps: float,
        norm: Norm,
        layer: int,
    ) -> None: ...
    def seal(self) -> None: ...
    def begin(
        self,
        tokens: Sequence[int],
        segments: Sequence[tuple[int, int, int, int]],
        wanted: Sequence[int],
        pages: NDArray[np.int32],
        logits: NDArray[np.float32],
        vocab: int,
    ) -> None: ...
    def run(
        self,
        first: int,
        last: int,
        by_row: bool = False,
        experts_by_row: bool = False,
        seconds: NDArray[np.float64] | None = None,
    ) -> bool: ...
    def expert_reads(self, op: int) -> tuple[int, int]: ...

def float_rate(team: Team, level: str, seconds: float) -> float: ...
def quant_rate(team: Team, level: str, seconds: float) -> float: ...
def read_rate(team: Team, level: str, bytes: int, seconds: float) -> float: ...

class LogitsError(Exception): ...

class SamplerState:
    def __init__(
        self,
        *,
        vocab: int,
        seed: int,
        index: int,
        prompt: Sequence[int],
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        repetition: float,
        presence: float,
        frequency: float,
        bias: Sequence[tuple[int, float]],
        stops: Sequence[int],
        min_tokens: int,
    ) -> None: ...
    def observe(self, token: int) -> None: ...
    def fork(self, index: int) -> SamplerState: ...

def sample(
    samplers: Sequence[SamplerState],
    logits: NDArray[Any],
    rows: Sequence[int],
    positions: Sequence[int],
    masks: Sequence[NDArray[np.uint32] | None],
) -> list[int]: ...
def logprobs(logits: NDArray[Any], targets: Sequence[int], top: int) -> list[tuple[float, list[tuple[int, float]]]]: ...

class JsonSize:
    @property
    def openings(self) -> int: ...
    @property
    def strings(self) -> int: ...
    @property
    def escapes(self) -> int: ...
    @property
    def longest_string(self) -> int: ...
    @property
    def values(self) -> int: ...
    @property
    def long_values(self) -> int: ...
    @property
    def longest_value(self) -> int: ...
    @property
    def blanks(self) -> int: ...
    @property
    def beyond_ascii(self) -> int: ...

def measure_json(text: bytes | bytearray) -> JsonSize: ...
def long_json_members(text: bytes | bytearray, least: int) -> list[tuple[bytes, list[int], int]]: ...

class PlainEvents:
    def __init__(self, kind: str, report: Sequence[str], delta: Sequence[str]) -> None: ...
    def of(self, frame: bytes, streams: Mapping[str, Any]) -> list[tuple[Any, Any, bytes]] | None: ...
