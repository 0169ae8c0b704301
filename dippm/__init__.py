"""DIPPM predicts what a deep learning model costs on a GPU, from the model file.

>>> import dippm
>>> dippm.predict("vgg16.onnx", batch=32, input="3,224,224", device="A100")  # doctest: +SKIP
"""

from __future__ import annotations

from dippm.base import interrupt as _interrupt  # noqa: F401  # isort: skip  before what takes time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dippm.base.moved import MOVED, keep_former_names
from dippm.errors import DippmError, DippmWarning
from dippm.model.vision_operators import watch_imports

if TYPE_CHECKING:
    from dippm.api import LoadedPredictor, compare, load, predict, read_graph
    from dippm.client import Client
    from dippm.decide.batch_sweep import BatchSweep, sweep
    from dippm.decide.choice import Choice, choose, smallest_slice
    from dippm.decide.costs import RunningCost, cost_of
    from dippm.decide.explanation import Difference, Explanation, WhatIf, diff, explain, what_if
    from dippm.decide.exploration import Exploration, Objective, Space, explore
    from dippm.decide.language import LanguagePrediction, language_model
    from dippm.decide.memory_fit import MemoryFit, fits
    from dippm.decide.parallel import ParallelEstimate, parallelize
    from dippm.decide.pipelines import Pipeline, PipelinePrediction, Stage, pipeline
    from dippm.decide.power_sweep import PowerSweep, sweep_power
    from dippm.decide.scheduling import ResourceRequest, request_resources
    from dippm.decide.sharing import SharedGpu, share
    from dippm.devices import Device
    from dippm.estimate.comparison import Comparison, Failure
    from dippm.estimate.conditions import Conditions, Execution
    from dippm.estimate.model_list import Candidate
    from dippm.estimate.options import Options
    from dippm.estimate.place import Place
    from dippm.estimate.prediction import Prediction
    from dippm.measure.calibration import calibrate
    from dippm.measure.measurement import Measurement, measure_model
    from dippm.measure.verification import Verification, verify
    from dippm.model.graph import ModelGraph
    from dippm.model.vision_operators import declare_vision_operators
    from dippm.runs.tracking.block import track
    from dippm.runs.tracking.run import span

__version__ = "0.2.0"
__all__ = [
    "BatchSweep",
    "Candidate",
    "Choice",
    "Client",
    "Comparison",
    "Conditions",
    "Device",
    "Difference",
    "DippmError",
    "DippmWarning",
    "Execution",
    "Explanation",
    "Exploration",
    "Failure",
    "LanguagePrediction",
    "LoadedPredictor",
    "Measurement",
    "MemoryFit",
    "ModelGraph",
    "Objective",
    "Options",
    "ParallelEstimate",
    "Pipeline",
    "PipelinePrediction",
    "Place",
    "PowerSweep",
    "Prediction",
    "ResourceRequest",
    "RunningCost",
    "SharedGpu",
    "Space",
    "Stage",
    "Verification",
    "WhatIf",
    "calibrate",
    "choose",
    "compare",
    "cost_of",
    "declare_vision_operators",
    "diff",
    "explain",
    "explore",
    "fits",
    "language_model",
    "load",
    "measure_model",
    "parallelize",
    "pipeline",
    "predict",
    "read_graph",
    "request_resources",
    "share",
    "smallest_slice",
    "span",
    "sweep",
    "sweep_power",
    "track",
    "verify",
    "what_if",
]

_HOMES = {
    "BatchSweep": "dippm.decide.batch_sweep",
    "Candidate": "dippm.estimate.model_list",
    "Choice": "dippm.decide.choice",
    "Client": "dippm.client",
    "Comparison": "dippm.estimate.comparison",
    "Conditions": "dippm.estimate.conditions",
    "Device": "dippm.devices",
    "Difference": "dippm.decide.explanation",
    "Execution": "dippm.estimate.conditions",
    "Explanation": "dippm.decide.explanation",
    "Exploration": "dippm.decide.exploration",
    "Failure": "dippm.estimate.comparison",
    "LanguagePrediction": "dippm.decide.language",
    "LoadedPredictor": "dippm.api",
    "Measurement": "dippm.measure.measurement",
    "MemoryFit": "dippm.decide.memory_fit",
    "ModelGraph": "dippm.model.graph",
    "Objective": "dippm.decide.exploration",
    "Options": "dippm.estimate.options",
    "ParallelEstimate": "dippm.decide.parallel",
    "Pipeline": "dippm.decide.pipelines",
    "PipelinePrediction": "dippm.decide.pipelines",
    "Place": "dippm.estimate.place",
    "PowerSweep": "dippm.decide.power_sweep",
    "Prediction": "dippm.estimate.prediction",
    "ResourceRequest": "dippm.decide.scheduling",
    "RunningCost": "dippm.decide.costs",
    "SharedGpu": "dippm.decide.sharing",
    "Space": "dippm.decide.exploration",
    "Stage": "dippm.decide.pipelines",
    "Verification": "dippm.measure.verification",
    "WhatIf": "dippm.decide.explanation",
    "calibrate": "dippm.measure.calibration",
    "choose": "dippm.decide.choice",
    "compare": "dippm.api",
    "cost_of": "dippm.decide.costs",
    "declare_vision_operators": "dippm.model.vision_operators",
    "diff": "dippm.decide.explanation",
    "explain": "dippm.decide.explanation",
    "explore": "dippm.decide.exploration",
    "fits": "dippm.decide.memory_fit",
    "language_model": "dippm.decide.language",
    "load": "dippm.api",
    "measure_model": "dippm.measure.measurement",
    "parallelize": "dippm.decide.parallel",
    "pipeline": "dippm.decide.pipelines",
    "predict": "dippm.api",
    "read_graph": "dippm.api",
    "request_resources": "dippm.decide.scheduling",
    "share": "dippm.decide.sharing",
    "smallest_slice": "dippm.decide.choice",
    "span": "dippm.runs.tracking.run",
    "sweep": "dippm.decide.batch_sweep",
    "sweep_power": "dippm.decide.power_sweep",
    "track": "dippm.runs.tracking.block",
    "verify": "dippm.measure.verification",
    "what_if": "dippm.decide.explanation",
}
WINGS = frozenset("base decide devices errors estimate measure model runs show".split())


keep_former_names()
watch_imports()  # for torchvision, timm and transformers beside a CPU build of torch


def __getattr__(name: str) -> Any:
    """Load public names, and packages such as `dippm.devices`, when they are first used."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in WINGS or name in MOVED:
        return import_module(f"dippm.{name}")
    raise AttributeError(f"module 'dippm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
