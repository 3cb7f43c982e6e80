"""Numbers as a reader wants them: three digits that matter, a unit that fits, nothing where nothing is known."""

import math

NONE = "\u2013"  # an en dash
TIMES = "\u00d7"
_PREFIXES = {-9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P"}
_THIN, _MINUS = "\u202f", "\u2212"  # narrow no-break space


def figure(value: float | None, digits: int = 3) -> str:
    """So many significant digits; whole digits are never cut short, and are grouped by thousands."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    if abs(round(value, decimals)) >= 10 ** (digits - decimals):  # rounding made one more digit
        decimals -= 1
    if decimals > 9 or abs(value) >= 1e15:
        return f"{value:.{digits - 1}e}".replace("-", _MINUS)
    return grouped(value, max(0, decimals))


def whole(number: float | None) -> str:
    """All digits of a whole number, grouped by thousands; a fraction keeps three digits."""
    if number is None:
        return NONE
    return grouped(number, 0) if number == int(number) and abs(number) < 1e15 else figure(number)


def grouped(value: float, decimals: int) -> str:
    """With so many decimals, thousands apart, and a minus that is as wide as a plus."""
    return f"{value:,.{decimals}f}".replace(",", _THIN).replace("-", _MINUS)


def amount(value: float | None, unit: str, digits: int = 3) -> str:
    """With the prefix that leaves one to three digits before the point: 0.0314, "s" gives 31.4 ms."""
    if value is None:
        return NONE
    if value == 0:
        return f"0{_THIN}{unit}"
    shown = float(f"{value:.{digits - 1}e}")  # 999.9 becomes 1 k, not 1000
    least, most = min(_PREFIXES), max(_PREFIXES)
    power = max(least, min(most, 3 * math.floor(math.log10(abs(shown)) / 3)))
    if unit == "s" and power > 0:  # nobody says kiloseconds
        power = 0
    return f"{figure(value / 10.0**power, digits)}{_THIN}{_PREFIXES[power]}{unit}"


def seconds(value: float | None, digits: int = 3) -> str:
    return amount(value, "s", digits)


def milliseconds(value: float | None, digits: int = 3) -> str:
    """The bare number, for a column that says ms."""
    return NONE if value is None else figure(value * 1e3, digits)


def rate(value: float | None) -> str:
    """Tokens per second."""
    return NONE if value is None else f"{figure(value)}{_THIN}tok/s"


def share(value: float | None) -> str:
    """A fraction in per cent."""
    return NONE if value is None else f"{figure(100 * value, 2 if abs(value) < 0.995 else 3)}{_THIN}%"


def shortened(name: str, most: int = 36) -> str:
    """A name that has room for so many characters: what is too long loses its middle."""
    ends = (most - 1) // 2
    return name if len(name) <= most else f"{name[:ends]}\u2026{name[-ends:]}"


def count(number: int, one: str, many: str | None = None) -> str:
    """2, "prompt" gives 2 prompts."""
    return f"{whole(number)} {one if number == 1 else many or one + 's'}"


def times(ratio: float | None, digits: int = 2) -> str:
    """A ratio as one says it: 10 times as much."""
    return NONE if ratio is None else f"{figure(ratio, digits)}{TIMES}"
