"""Sampler: from logits to the next token of one completion, and to log-probabilities.

A choice is made of float32 logits in this order: tokens excluded that a grammar forbids; logit bias; repetition penalty
(tokens of the prompt and generated ones: z / r where z > 0, else z * r), then presence and frequency penalties
(generated ones only); stop ids excluded until min_tokens were generated; temperature; min_p; top_k; top_p, of the mass
that the former left. All three filters cut one order, larger logit first and then lower id, so that ties are cut too.
The token is then drawn by inverse CDF along the ids of what is left. Temperature 0 takes the first of the order.

The draw is Philox4x32-10 (Salmon et al. 2011) keyed by the seed, at (position, index), and masses are whole numbers:
a completion's tokens depend on its own logits alone, not on the batch, on earlier draws or on the machine.
`sample_reference` states the same in numpy.

Log-probabilities are natural, of the softmax of the logits as they came: before bias, penalties and temperature.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from phaseline._native import LogitsError, SamplerState, logprobs, sample
from phaseline.engine.types import SamplingParams, TokenLogprob
from phaseline.errors import PhaselineError

if TYPE_CHECKING:
    from phaseline.engine.constraint import Constraint


class Sampler:
    """What one completion's choices depend on. `params` have passed `engine.validate`; every id is below `vocab`.

    `seed` takes the place of `params.seed`, which may be None. `index` is the completion's among the n of its
    request: each draws from its own stream. `stop_ids` are excluded until `params.min_tokens` tokens were sampled:
    the ids that would end the completion; a `constraint`, of this completion alone, sees to that itself. Memory does
    not grow unless a penalty is on.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        vocab: int,
        seed: int,
        prompt: Sequence[int],
        stop_ids: Iterable[int] = (),
        index: int = 0,
        constraint: "Constraint | None" = None,
    ) -> None:
        self._constraint = constraint
        self._state = SamplerState(
            vocab=vocab,
            seed=seed,
            index=index,
            prompt=prompt,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            repetition=params.repetition_penalty,
            presence=params.presence_penalty,
            frequency=params.frequency_penalty,
            bias=list(params.logit_bias.items()),
            stops=[] if constraint else list(stop_ids),
            min_tokens=params.min_tokens,
        )

    def sample(self, logits: NDArray[Any], position: int) -> int:
        """Choose from `logits` (vocab,) the token at `position` of the sequence, and count it."""
        return sample_batch([self], logits[np.newaxis], [position])[0]

    @property
    def finished(self) -> bool:
        """The grammar lets nothing follow what was sampled."""
        return self._constraint is not None and self._constraint.finished

    def fork(self, index: int) -> "Sampler":
        """A sampler with the same past that draws from the stream `index`."""
        other = object.__new__(Sampler)
        other._state = self._state.fork(index)
        other._constraint = self._constraint.fork() if self._constraint else None
        return other

    @staticmethod
    def logprob(logits: NDArray[Any], token: int, top: int) -> TokenLogprob:
        """The log-probability of `token` under `logits` (vocab,), and the `top` likeliest tokens."""
        return prompt_logprobs(logits[np.newaxis], [token], top)[0]


def sample_batch(
    samplers: Sequence[Sampler], logits: NDArray[Any], positions: Sequence[int], rows: Sequence[int] | None = None
) -> list[int]:
    """One token for each sampler: from row `rows[i]` (default: i) of `logits` (rows, vocab), at `positions[i]`.

    Several samplers may read one row. Raises PhaselineError if a row holds NaN or +inf, or only -inf, or a grammar
    can't be followed further; then no sampler has counted anything.
    """
    states, masks = [], []
    for sampler in samplers:
        states.append(sampler._state)
        masks.append(sampler._constraint.mask() if sampler._constraint else None)
    try:
        tokens = sample(states, logits, range(len(states)) if rows is None else rows, positions, masks)
    except LogitsError as error:
        raise PhaselineError(f"no token can be sampled: {error}") from None
    for sampler, token in zip(samplers, tokens, strict=True):
        if sampler._constraint:
            sampler._constraint.advance(token)
    return tokens


def prompt_logprobs(logits: NDArray[Any], targets: Sequence[int], top: int) -> list[TokenLogprob]:
    """Log-probability of `targets[i]` under row i of `logits` (rows, vocab), with the row's `top` likeliest tokens.

    Ties among these go to the lower id; tokens at -inf are not among them. Raises PhaselineError as `sample_batch`.
    """
    try:
        found = logprobs(logits, targets, top)
    except LogitsError as error:
        raise PhaselineError(f"no log-probability exists: {error}") from None
    return [TokenLogprob(target, own, best) for target, (own, best) in zip(targets, found, strict=True)]
