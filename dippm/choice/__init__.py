"""Which GPU, or slice of one, to run a model on: candidates, limits, ranking, how sure it is."""

from dippm.choice.choice import Choice
from dippm.choice.contender import BY, By, Contender
from dippm.choice.limits import Limits
from dippm.choice.packing import Packed, Packing, pack
from dippm.choice.prices import Prices, read_prices
from dippm.choice.ranking import choose
from dippm.choice.slices import smallest_slice

__all__ = [
    "BY",
    "By",
    "Choice",
    "Contender",
    "Limits",
    "Packed",
    "Packing",
    "Prices",
    "choose",
    "pack",
    "read_prices",
    "smallest_slice",
]
