"""Log-probabilities as OpenAI's two endpoints shape them."""

import codecs
from collections.abc import Iterable, Sequence

from phaseline.engine.types import TokenLogprob
from phaseline.files.tokenizer import Tokenizer
from phaseline.serve.door.objects import ChatLogprob, ChatLogprobs, LegacyLogprobs, TopLogprob

_LEAST = -9999.0  # for what can't be: JSON has no -inf


def spelling(tokenizer: Tokenizer, token: int) -> bytes:
    """What names a token: the bytes it adds to a text, a control token spelt out."""
    return tokenizer.token_bytes(token, skip_special=False) or tokenizer.token_text(token).encode()


def chat_logprobs(tokenizer: Tokenizer, scored: Iterable[TokenLogprob]) -> ChatLogprobs:
    """One entry per token, each with its best alternatives, most likely first."""

    def named(token: int, logprob: float) -> tuple[str, float, list[int]]:
        spelt = spelling(tokenizer, token)
        return spelt.decode(errors="replace"), max(logprob, _LEAST), list(spelt)

    return ChatLogprobs(
        [ChatLogprob(*named(s.token, s.logprob), [TopLogprob(*named(*best)) for best in s.top]) for s in scored]
    )


class LegacyScore:
    """Log-probabilities of one choice of `/v1/completions` as it grows; knows where in its text each token begins."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._offset = tokenizer, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def prompt(self, tokens: Sequence[int], scored: Sequence[TokenLogprob | None], text: str) -> LegacyLogprobs:
        """Of an echoed prompt that `text` spells; its first token has none."""
        logprobs = LegacyLogprobs()
        for token, score in zip(tokens, scored, strict=True):
            self._add(logprobs, token, score)
        self._offset = len(text)  # a tokenizer may put a space of its own before it, which is not in the text
        return logprobs

    def generated(self, scored: Iterable[TokenLogprob]) -> LegacyLogprobs:
        """Of tokens that were chosen."""
        logprobs = LegacyLogprobs()
        for score in scored:
            self._add(logprobs, score.token, score)
        return logprobs

    def _add(self, logprobs: LegacyLogprobs, token: int, score: TokenLogprob | None) -> None:
        logprobs.tokens.append(self._name(token))
        logprobs.text_offset.append(self._offset)
        self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token)))
        logprobs.token_logprobs.append(None if score is None else max(score.logprob, _LEAST))
        best = None
        if score is not None:  # the chosen one is among them, as the last if it is not one of the best
            best = {self._name(token): max(logprob, _LEAST) for token, logprob in score.top}
            best.setdefault(self._name(token), max(score.logprob, _LEAST))
        logprobs.top_logprobs.append(best)

    def _name(self, token: int) -> str:
        """Text, or what OpenAI writes for bytes that are none."""
        spelt = spelling(self._tokenizer, token)
        try:
            return spelt.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelt)


def join_legacy(parts: Sequence[LegacyLogprobs]) -> LegacyLogprobs:
    """The parts one after the other."""
    whole = LegacyLogprobs()
    for part in parts:
        whole.tokens += part.tokens
        whole.token_logprobs += part.token_logprobs
        whole.top_logprobs += part.top_logprobs
        whole.text_offset += part.text_offset
    return whole
