"""Which GPU, or slice of one, to run a model on: candidates, limits, ranking, how sure it is."""

from dippm.decide.choice.choice import Choice
from dippm.decide.choice.contender import BY, By, Contender
from dippm.decide.choice.limits import Limits
from dippm.decide.choice.packing import PackedModel, Packing, pack, smallest_slice
from dippm.decide.choice.prices import Prices, read_prices
from dippm.decide.choice.ranking import choose

__all__ = [
    "BY",
    "By",
    "Choice",
    "Contender",
    "Limits",
    "PackedModel",
    "Packing",
    "Prices",
    "choose",
    "pack",
    "read_prices",
    "smallest_slice",
]
