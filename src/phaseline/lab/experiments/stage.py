"""Where a long prompt meets running streams: who they are, how the system reads prompts, and how that is played."""

from dataclasses import dataclass, field

from phaseline.errors import RequestError
from phaseline.lab.drive import follow
from phaseline.lab.experiments.clash import LEAST_STEP, Clash, run_clash
from phaseline.lab.metrics import chunk_schedule
from phaseline.lab.prompts import WORDS, Vocabulary, random_asks
from phaseline.lab.systems.base import Ask, StreamSystem
from phaseline.lab.systems.phaseline import PhaselineSystem

LEAST = 2  # tokens of a prompt that our engine reads in a step, whatever its budget in time
_UNKNOWN_PIECES = 256  # that a victim must outlive where the chunk is not known
_SPARE = 64  # tokens that a victim is asked for beyond


@dataclass(frozen=True, slots=True)
class Setting:
    """How the system reads prompts: at most `chunk` tokens per step, 0 for all at once, None where that is not known.

    `itl_budget_ms`: fewer, but at least LEAST, where the step would take longer.
    """

    chunk: int | None = None
    itl_budget_ms: float | None = None

    @property
    def label(self) -> str:
        if self.itl_budget_ms is not None:
            return f"budget {self.itl_budget_ms:g} ms"
        return "as it is" if self.chunk is None else f"chunk {self.chunk}" if self.chunk else "whole"

    def most_pieces(self, prompt: int) -> int | None:
        """Pieces in which a prompt is read, at most; None where that is not known."""
        if self.chunk is None:
            return None
        chunk = self.chunk or prompt
        return len(chunk_schedule(prompt, chunk if self.itl_budget_ms is None else min(chunk, LEAST)))


@dataclass(frozen=True, slots=True)
class Scene:
    """Who meets whom. Lengths in tokens; the intruder arrives when each victim has `step` tokens.

    `stream_tokens`: what a victim is asked for; None: enough to outlive the intruder's prompt.
    """

    victims: int = 1
    victim_tokens: int = 32
    stream_tokens: int | None = None
    step: int = 32
    intruder_tokens: int = 2000
    intruder_output: int = 8

    def __post_init__(self) -> None:
        counts = (self.victims, self.victim_tokens, self.intruder_tokens, self.intruder_output)
        if min(counts) < 1:
            raise RequestError(f"{self}: at least one victim, and at least one token of each kind")
        if self.step < LEAST_STEP:
            raise RequestError(f"arrival at token {self.step}: at least {LEAST_STEP} show how a victim decodes alone")
        if self.stream_tokens is not None and self.stream_tokens <= self.step:
            raise RequestError(f"a stream of {self.stream_tokens} tokens ends before token {self.step}, the arrival")

    def stream(self, setting: Setting) -> int:
        """Tokens that a victim is asked for."""
        pieces = setting.most_pieces(self.intruder_tokens) or _UNKNOWN_PIECES
        return self.stream_tokens or self.step + pieces + self.intruder_output + _SPARE


@dataclass
class Stage:
    """Where scenes are played: the system, our own engine if it is that, and prompts that are never the same.

    `mode`: of our own engine.
    """

    system: StreamSystem
    own: PhaselineSystem | None = None
    mode: str = "chunk"
    vocabulary: Vocabulary = WORDS
    ignore_eos: bool = True
    seed: int = 0
    _asked: int = field(default=0, init=False)

    async def warm_up(self, scene: Scene) -> None:
        """One short stream, not recorded."""
        await follow(self.system, self._ask(scene.victim_tokens, LEAST_STEP))

    async def play(self, scene: Scene, setting: Setting) -> Clash:
        if self.own is not None:
            self.own.configure(self.mode, setting.chunk or scene.intruder_tokens, setting.itl_budget_ms)
        victims = [self._ask(scene.victim_tokens, scene.stream(setting)) for _ in range(scene.victims)]
        intruder = self._ask(scene.intruder_tokens, scene.intruder_output)
        return await run_clash(self.system, victims, intruder, scene.step)

    def _ask(self, prompt: int, output: int) -> Ask:
        number, self._asked = self._asked, self._asked + 1
        return random_asks(
            *(number + 1, prompt, output), vocabulary=self.vocabulary, ignore_eos=self.ignore_eos, seed=self.seed
        )[number]
