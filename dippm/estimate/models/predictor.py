"""The contract of a predictor, and the kinds that exist.

To add a kind: write a class with the methods of `Predictor`, decorate it with
`@predictor("name")`, and train it into a checkpoint whose `config.json` has `"kind": "name"`.
A kind may also have `memory_bound_mb(graph, conditions)`: that part of its answer, sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from dippm.errors import ConditionsError
from dippm.estimate.conditions import Conditions
from dippm.estimate.models.targets import Estimates
from dippm.model.graph.model_graph import ModelGraph

if TYPE_CHECKING:
    import torch


class Predictor(Protocol):
    """Graph and conditions in, estimates out."""

    @classmethod
    def from_checkpoint(
        cls, tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any]
    ) -> Self:
        """Build the predictor from the tensors and the configuration of a checkpoint.

        A class whose attribute `tensor_library` is "numpy" gets numpy arrays, and answers where
        torch is not installed.
        """
        ...

    def predict(self, graph: ModelGraph, conditions: Conditions) -> Estimates:
        """Predict one point.

        What a graph that runs nothing (`ModelGraph.runs_nothing`) cannot have is absent, with
        `NOTHING_RUNS` as its reason.

        Raises:
            ConditionsError: if this kind or checkpoint cannot answer for these conditions.
        """
        ...

    def predict_many(self, graph: ModelGraph, conditions: Sequence[Conditions]) -> list[Estimates]:
        """Predict many points of one model; operator tables may be left out."""
        ...


PREDICTORS: dict[str, type[Predictor]] = {}
Kind = TypeVar("Kind", bound=type[Any])


def predictor(name: str) -> Callable[[Kind], Kind]:
    """Register a predictor class under the kind that checkpoints name."""

    def register(kind: Kind) -> Kind:
        PREDICTORS[name] = kind
        return kind

    return register


def phases_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the phases that a checkpoint answers for; one that states none answers inference."""
    conditions = config.get("conditions")
    listed = conditions.get("phase") if isinstance(conditions, dict) else None
    return tuple(map(str, listed)) if isinstance(listed, list) and listed else ("inference",)


def refuse_runtime(conditions: Conditions) -> None:
    """Refuse an engine, for a kind that knows no kernels.

    Raises:
        ConditionsError: if one is asked for.
    """
    if conditions.runtime != "pytorch":
        raise ConditionsError(
            f"this checkpoint predicts PyTorch, not {conditions.runtime}",
            "Leave the checkpoint out, or use runtime=pytorch.",
        )


def refuse_phase(config: Mapping[str, Any], conditions: Conditions) -> None:
    """Refuse conditions of another phase than those of a checkpoint.

    Raises:
        ConditionsError: if they are.
    """
    known = phases_of(config)
    if conditions.phase not in known:
        what = {"inference": "inference", "train": "training steps"}
        raise ConditionsError(
            f"this checkpoint predicts {what.get(known[0], known[0])}, not "
            f"{what[conditions.phase]}",
            f"Ask for phase={known[0]}, or leave the checkpoint out: the one that knows the phase "
            "is taken.",
        )
