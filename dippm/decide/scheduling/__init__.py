"""Resource requests for schedulers: the smallest place that suffices, in a scheduler's format.

`request_resources` finds the place and a format writes it; `format.py` says how to add one.
"""

from dippm.decide.scheduling.format import Format, all_formats, find_format
from dippm.decide.scheduling.request import ResourceRequest, probability_within, request_resources

__all__ = [
    "Format",
    "ResourceRequest",
    "all_formats",
    "find_format",
    "probability_within",
    "request_resources",
]
