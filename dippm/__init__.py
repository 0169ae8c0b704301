"""DIPPM predicts what a deep learning model costs on a GPU, from the model file.

>>> import dippm
>>> dippm.predict("vgg16.onnx", batch=32, input="3,224,224", device="A100")  # doctest: +SKIP
"""

from __future__ import annotations

from dippm import interrupt as _interrupt  # noqa: F401  # isort: skip  before what takes time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dippm.errors import DippmError, DippmWarning
from dippm.vision_operators import watch_imports

if TYPE_CHECKING:
    from dippm.api import LoadedPredictor, compare, load, predict, read_graph
    from dippm.batch_sweep import BatchSweep, sweep
    from dippm.calibration import calibrate
    from dippm.candidates import Candidate
    from dippm.choice import Choice, choose, smallest_slice
    from dippm.comparison import Comparison, Failure
    from dippm.conditions import Conditions
    from dippm.devices import Device
    from dippm.explanation import Difference, Explanation, WhatIf, diff, explain, what_if
    from dippm.exploration import Exploration, Objective, Space, explore
    from dippm.graph import ModelGraph
    from dippm.language import LanguagePrediction, language_model
    from dippm.measure.measurement import Measurement, measure_model
    from dippm.parallel import ParallelEstimate, parallelize
    from dippm.power_sweep import PowerSweep, sweep_power
    from dippm.prediction import Prediction
    from dippm.tracking.block import track
    from dippm.tracking.run import span
    from dippm.verification import Verification, verify
    from dippm.vision_operators import declare_vision_operators

__version__ = "0.1.0"
__all__ = [
    "BatchSweep",
    "Candidate",
    "Choice",
    "Comparison",
    "Conditions",
    "Device",
    "Difference",
    "DippmError",
    "DippmWarning",
    "Explanation",
    "Exploration",
    "Failure",
    "LanguagePrediction",
    "LoadedPredictor",
    "Measurement",
    "ModelGraph",
    "Objective",
    "ParallelEstimate",
    "PowerSweep",
    "Prediction",
    "Space",
    "Verification",
    "WhatIf",
    "calibrate",
    "choose",
    "compare",
    "declare_vision_operators",
    "diff",
    "explain",
    "explore",
    "language_model",
    "load",
    "measure_model",
    "parallelize",
    "predict",
    "read_graph",
    "smallest_slice",
    "span",
    "sweep",
    "sweep_power",
    "track",
    "verify",
    "what_if",
]

_HOMES = {
    "BatchSweep": "dippm.batch_sweep",
    "Candidate": "dippm.candidates",
    "Choice": "dippm.choice",
    "Comparison": "dippm.comparison",
    "Conditions": "dippm.conditions",
    "Device": "dippm.devices",
    "Difference": "dippm.explanation",
    "Explanation": "dippm.explanation",
    "Exploration": "dippm.exploration",
    "Failure": "dippm.comparison",
    "LanguagePrediction": "dippm.language",
    "LoadedPredictor": "dippm.api",
    "Measurement": "dippm.measure.measurement",
    "ModelGraph": "dippm.graph",
    "Objective": "dippm.exploration",
    "ParallelEstimate": "dippm.parallel",
    "PowerSweep": "dippm.power_sweep",
    "Prediction": "dippm.prediction",
    "Space": "dippm.exploration",
    "Verification": "dippm.verification",
    "WhatIf": "dippm.explanation",
    "calibrate": "dippm.calibration",
    "choose": "dippm.choice",
    "compare": "dippm.api",
    "declare_vision_operators": "dippm.vision_operators",
    "diff": "dippm.explanation",
    "explain": "dippm.explanation",
    "explore": "dippm.exploration",
    "language_model": "dippm.language",
    "load": "dippm.api",
    "measure_model": "dippm.measure.measurement",
    "parallelize": "dippm.parallel",
    "predict": "dippm.api",
    "read_graph": "dippm.api",
    "smallest_slice": "dippm.choice",
    "span": "dippm.tracking.run",
    "sweep": "dippm.batch_sweep",
    "sweep_power": "dippm.power_sweep",
    "track": "dippm.tracking.block",
    "verify": "dippm.verification",
    "what_if": "dippm.explanation",
}
STAGES = frozenset(
    "devices errors exploration features frontends graph measure models pretrained store "
    "tracking".split()
)


watch_imports()  # for torchvision, timm and transformers beside a CPU build of torch


def __getattr__(name: str) -> Any:
    """Load public names, and stages such as `dippm.graph`, when they are first used."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in STAGES:
        return import_module(f"dippm.{name}")
    raise AttributeError(f"module 'dippm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
