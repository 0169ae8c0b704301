"""Training steps of language and vision models, attention written out or fused, on two GPUs.

The pages of the models state latency and the peak of torch's allocator, not how the step was
timed, nor whether the parameters were updated in it.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dataset.measured.table import Source, catalogue_names, tidy

FILE = "attention.csv"
LAPTOP = "rtx3080ti-16GB"
"""A laptop's chip of another size under the name of a desktop card; the catalogue lacks it."""
GPUS = {"GeForce RTX 2060-8GB": "RTX-2060", "NVIDIA GeForce RTX 2060-8GB": "RTX-2060"}
