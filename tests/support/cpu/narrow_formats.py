"""Floating-point formats of 16 and 8 bits implemented from their definitions: the reference for half, bfloat16 and
fp8."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

Array = np.ndarray
WAYS = ("rn", "rz", "ru", "rd")
_NUMPY = {"rn": np.rint, "rz": np.trunc, "ru": np.ceil, "rd": np.floor}


@dataclass(frozen=True)
class Format:
    """Widths of the fields of a number; sign, exponent and mantissa fill `dtype`. Infinities are encoded as in IEEE
    754."""

    exponent: int
    mantissa: int
    dtype: type

    @property
    def lowest(self) -> int:
        """Exponent of the smallest normal number."""
        return 2 - (1 << (self.exponent - 1))

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent) - 1) << self.mantissa

    def values(self, codes: Array) -> Array:
        """Returns the numbers that `codes` encode, as float64."""
        code = codes.astype(np.int64)
        sign = np.where(code >> (self.exponent + self.mantissa), -1.0, 1.0)
        field, fraction = code >> self.mantissa & ((1 << self.exponent) - 1), code & ((1 << self.mantissa) - 1)
        significand = np.where(field > 0, fraction + (1 << self.mantissa), fraction).astype(float)
        value = np.ldexp(significand, np.maximum(field, 1) - 1 + self.lowest - self.mantissa)
        special = np.where(fraction == 0, np.inf, np.nan)
        return sign * np.where(field == (1 << self.exponent) - 1, special, value)

    def rounded(self, exact: Array, mode: str = "rn") -> Array:
        """Rounds `exact` (float64) to numbers of this format, returned as float64."""
        with np.errstate(all="ignore"):
            exponent = np.maximum(np.frexp(exact)[1] - 1, self.lowest)
            units = _NUMPY[mode](np.ldexp(exact, self.mantissa - exponent))
            value = np.copysign(np.ldexp(units, exponent - self.mantissa), exact)
            largest = float(self.values(np.array([self.infinity - 1]))[0])
            past = {
                "rn": (np.inf, -np.inf),
                "rz": (largest, -largest),
                "ru": (np.inf, -largest),
                "rd": (largest, -np.inf),
            }[mode]
            value = np.where(np.isfinite(exact) & (value > largest), past[0], value)
            return np.where(np.isfinite(exact) & (value < -largest), past[1], value)

    def rounded_exactly(self, exact: Fraction, mode: str = "rn") -> float:
        """Rounds a number that float64 may not represent exactly, by the rules of `rounded`."""
        if exact == 0:
            return 0.0
        size, exponent = abs(exact), self.lowest
        guess = size.numerator.bit_length() - size.denominator.bit_length()
        for candidate in (guess - 1, guess):
            if candidate > exponent and size >= Fraction(2) ** candidate:
                exponent = candidate
        unit = Fraction(2) ** (exponent - self.mantissa)
        units = exact / unit
        below = units.numerator // units.denominator
        remainder = units - below
        up = {
            "rn": remainder > Fraction(1, 2) or (remainder == Fraction(1, 2) and below % 2 == 1),
            "rz": exact < 0 and remainder > 0, "ru": remainder > 0, "rd": False,
        }[mode]  # fmt: skip
        size = abs(float((below + up) * unit))
        return float(self.rounded(np.array([-size if exact < 0 else size]), mode)[0])


HALF = Format(5, 10, np.uint16)
BFLOAT16 = Format(8, 7, np.uint16)


def assert_same(got: Array, expected: Array, subject: str) -> None:
    """Checks that the numbers are equal, where zero and minus zero differ, and all NaNs are equal."""
    same = (got == expected) & (np.signbit(got) == np.signbit(expected)) | np.isnan(got) & np.isnan(expected)
    if not same.all():
        at = np.flatnonzero(~same)
        shown = ", ".join(f"[{i}] {got[i]!r} for {expected[i]!r}" for i in at[:5])
        raise AssertionError(f"{subject}: {len(at)} of {len(got)} differ: {shown}")
