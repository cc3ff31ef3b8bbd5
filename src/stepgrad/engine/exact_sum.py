"""Sums that do not depend on the order of their terms.

AP is a sum of precisions l/r, each an IEEE quotient in (0, 1]. A pair of doubles (hi, lo) holds about 106 bits, and a
sum of up to 2^20 quotients with r < 2^26 needs at most 20 + 53 + 26 = 99, so the pair holds the sum exactly, whatever the
order of additions. Rounded to one double it equals `math.fsum`. That is why a value updated from its neighbour, the
value of a fresh evaluation and the oracle's value are equal to the last bit.
"""

from __future__ import annotations

from stepgrad.engine.jit import inlined

_SPLIT = 134217729.0  # 2**27 + 1: Veltkamp's constant, cuts a double into two halves of 26 bits
ROUNDING = 2.0**-52  # two sums of the same rational value, made of rounded quotients, differ by at most this share


@inlined
def add(hi: float, lo: float, x: float) -> tuple[float, float]:
    """(hi, lo) + x."""
    total = hi + x
    # Knuth's two-sum: what the addition of hi and x lost, exactly, joins the lower half.
    virtual = total - hi
    low = lo + ((hi - (total - virtual)) + (x - virtual))
    high = total + low
    return high, low - (high - total)


@inlined
def add_multiple(hi: float, lo: float, count: int, x: float) -> tuple[float, float]:
    """(hi, lo) + count * x for 0 <= count < 2**26, exactly."""
    if count == 0:
        return hi, lo
    if count == 1:
        return add(hi, lo, x)
    # Veltkamp's split: each half of x times the count fits a double, so neither product is rounded.
    scaled = _SPLIT * x
    upper = scaled - (scaled - x)
    hi, lo = add(hi, lo, count * upper)
    return add(hi, lo, count * (x - upper))


@inlined
def differ(hi: float, lo: float, other_hi: float, other_lo: float) -> bool:
    """Whether two sums differ by more than the rounding of their quotients can explain.

    >>> bool(differ(1.0 / 3.0, 0.0, 1.0 / 3.0, 0.0)), bool(differ(0.5, 0.0, 0.25, 0.0))
    (False, True)
    """
    return abs((hi - other_hi) + (lo - other_lo)) > (hi + other_hi) * ROUNDING
