"""DIPPM predicts what a deep learning model costs on a GPU, from the model file.

>>> import dippm
>>> dippm.predict("vgg16.onnx", batch=32, input="3,224,224", device="A100")  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dippm.errors import DippmError, DippmWarning
from dippm.vision_operators import watch_imports

if TYPE_CHECKING:
    from dippm.api import LoadedPredictor, compare, load, predict, read_graph
    from dippm.batch_sweep import BatchSweep, sweep
    from dippm.calibrate import calibrate
    from dippm.candidates import Candidate
    from dippm.comparison import Comparison, Failure
    from dippm.conditions import Conditions
    from dippm.devices import Device
    from dippm.exploration import Exploration, Objective, Space, explore
    from dippm.graph import ModelGraph
    from dippm.measure.measurement import Measurement, measure_model
    from dippm.power_sweep import PowerSweep, sweep_power
    from dippm.prediction import Prediction
    from dippm.verification import Verification, verify
    from dippm.vision_operators import declare_vision_operators

__version__ = "0.1.0"
__all__ = [
    "BatchSweep",
    "Candidate",
    "Comparison",
    "Conditions",
    "Device",
    "DippmError",
    "DippmWarning",
    "Exploration",
    "Failure",
    "LoadedPredictor",
    "Measurement",
    "ModelGraph",
    "Objective",
    "PowerSweep",
    "Prediction",
    "Space",
    "Verification",
    "calibrate",
    "compare",
    "declare_vision_operators",
    "explore",
    "load",
    "measure_model",
    "predict",
    "read_graph",
    "sweep",
    "sweep_power",
    "verify",
]

_HOMES = {
    "BatchSweep": "dippm.batch_sweep",
    "Candidate": "dippm.candidates",
    "Comparison": "dippm.comparison",
    "Conditions": "dippm.conditions",
    "Device": "dippm.devices",
    "Exploration": "dippm.exploration",
    "Failure": "dippm.comparison",
    "LoadedPredictor": "dippm.api",
    "Measurement": "dippm.measure.measurement",
    "ModelGraph": "dippm.graph",
    "Objective": "dippm.exploration",
    "PowerSweep": "dippm.power_sweep",
    "Prediction": "dippm.prediction",
    "Space": "dippm.exploration",
    "Verification": "dippm.verification",
    "calibrate": "dippm.calibrate",
    "compare": "dippm.api",
    "declare_vision_operators": "dippm.vision_operators",
    "explore": "dippm.exploration",
    "load": "dippm.api",
    "measure_model": "dippm.measure.measurement",
    "predict": "dippm.api",
    "read_graph": "dippm.api",
    "sweep": "dippm.batch_sweep",
    "sweep_power": "dippm.power_sweep",
    "verify": "dippm.verification",
}
STAGES = frozenset(
    "devices errors exploration features frontends graph measure models pretrained".split()
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
