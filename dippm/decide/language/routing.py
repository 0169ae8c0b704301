"""How many experts a pass wakes."""

from __future__ import annotations

from dippm.decide.language.architecture import FeedForward


def busy_experts(network: FeedForward, tokens: int) -> float:
    """Return how many experts are expected to get a token, at least those of one token.

    experts · (1 - (1 - chosen / experts) ^ tokens): each token chooses for itself, all experts are
    equally likely. Real routers prefer some, so real passes wake fewer.
    """
    share = network.chosen / network.experts
    return network.experts * (1.0 - (1.0 - share) ** tokens)
