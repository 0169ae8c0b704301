"""Zero-cost proxies: examples of an objective of one's own, which need no training and no data.

They rank designs by how much they could hold or compute. **None of them is an accuracy**, nor a
prediction of one: within one family larger networks are usually more accurate, across families and
tasks that breaks. They are the baselines that proxies of trained accuracy have to beat (Abdelfattah
et al. 2021, "Zero-cost proxies for lightweight NAS"; Ning et al. 2021, "Evaluating efficient
performance estimators of neural architectures"). Use your own function where accuracy matters.
"""

from __future__ import annotations

import math

from dippm.decide.exploration.objectives import Objective
from dippm.model.graph import ModelGraph

NOTE = "a zero-cost proxy, no accuracy and no prediction of one"


def weights_proxy() -> Objective:
    """Return an example: log10 of the bytes of weights, to be maximised."""
    return Objective("weights_proxy", "max", of=_log_weights, note=f"log10 of weight bytes: {NOTE}")


def macs_proxy() -> Objective:
    """Return an example: log10 of the multiply-accumulates of a sample, to be maximised."""
    return Objective("macs_proxy", "max", of=_log_macs, note=f"log10 of MACs: {NOTE}")


def _log_weights(graph: ModelGraph) -> float:
    return math.log10(max(graph.param_bytes, 1))


def _log_macs(graph: ModelGraph) -> float:
    one = graph.at_batch(1) if graph.batch_is_symbolic else graph
    return math.log10(max(one.macs / one.batch, 1))
