"""A model on many GPUs: an estimate from a prediction for one GPU and public data of links."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dippm.decide.parallel.estimate import ParallelEstimate, parallelize

__all__ = ["ParallelEstimate", "parallelize"]


def __getattr__(name: str) -> Any:
    """Load the estimate on first use: collectives alone need no predictor."""
    if name in __all__:
        from dippm.decide.parallel import estimate

        return getattr(estimate, name)
    raise AttributeError(f"module 'dippm.decide.parallel' has no attribute {name!r}")
