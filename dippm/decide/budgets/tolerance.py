"""`Tolerance`: how much more than its baseline a quantity may be."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import exp, log
from statistics import NormalDist

from dippm.errors import BudgetError, shortened
from dippm.estimate.models.targets import Interval

_FORM = re.compile(r"(?P<number>\d{1,6}(\.\d{1,6})?) *(?P<unit>%|sd)")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much more than its baseline a quantity may be.

    Attributes:
        number: of per cent, or of standard deviations of the interval, which is taken as that of
            the logarithm; a quantity without an interval has none, and may not grow at all.
        unit: "%" or "sd".
    """

    number: float
    unit: str

    @classmethod
    def parse(cls, text: str) -> Tolerance:
        """Read "5%" or "2sd".

        Raises:
            BudgetError: if it is neither.
        """
        found = _FORM.fullmatch(text.strip()) if isinstance(text, str) else None
        if found is None:
            raise BudgetError(
                f"the tolerance is {shortened(repr(text))}",
                'Give per cent, "5%", or standard deviations of the interval, "2sd".',
            )
        return cls(float(found["number"]), found["unit"])

    def __str__(self) -> str:
        return f"{self.number:g}{self.unit}"

    def most(self, baseline: float, interval: Interval | None) -> float:
        """Return the most that a quantity may be.

        Args:
            baseline: what it was.
            interval: of what it is.
        """
        if self.unit == "%":
            return baseline * (1 + self.number / 100)
        if interval is None or interval.low <= 0:
            return baseline
        spread = NormalDist().inv_cdf((1 + interval.coverage) / 2)
        return baseline * exp(self.number * log(interval.high / interval.low) / (2 * spread))
