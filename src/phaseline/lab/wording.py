"""Amounts as findings spell them."""

from phaseline.lab.fit import Interval


def ms(seconds: float) -> str:
    """Milliseconds to three digits; below one of them microseconds."""
    return f"{_digits(seconds * 1e6)} µs" if abs(seconds) < 1e-3 else f"{_digits(seconds * 1e3)} ms"


def ms_span(seconds: float, interval: Interval | None) -> str:
    """`ms`, with the interval behind it."""
    return ms(seconds) if interval is None else f"{ms(seconds)} [{ms(interval[0])} to {ms(interval[1])}]"


def rate(tok_s: float) -> str:
    """Tokens per second to three digits."""
    return f"{_digits(tok_s)} tok/s"


def percent(share: float) -> str:
    """A share in whole percent, with a digit more below ten."""
    return f"{share:.1%}" if abs(share) < 0.0995 else f"{share:.0%}"


def rough(residual: float) -> list[str]:
    """A warning about a fit that misses what it was made from, if it does by more than a tenth."""
    return [f"The fit misses the medians by {percent(residual)}: it is a rough one."] if residual > 0.1 else []


def counted(number: int, noun: str) -> str:
    """A number of things whose plural ends in s."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def span(interval: Interval | None) -> str:
    """An interval behind the figure it belongs to, or nothing."""
    return "" if interval is None else f" [{_digits(interval[0])} to {_digits(interval[1])}]"


def _digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
