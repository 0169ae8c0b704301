"""Cost of pipelines: models that run one after the other.

stage     `Stage` and `Pipeline`: the description, checked, also from a TOML file
shipped   pipelines by name, without weights: `sdxl`, `whisper`, ...
memory    memory over time, and the largest batch
combined  intervals of sums whose terms share their errors
answer    `PipelinePrediction`, and how it prints
running   the question: `pipeline`; sizes of a stage's inputs, from the outputs of other stages
"""

from dippm.decide.pipelines.answer import PipelinePrediction
from dippm.decide.pipelines.running import pipeline
from dippm.decide.pipelines.shipped import SHIPPED
from dippm.decide.pipelines.stage import Pipeline, Stage, read_pipeline

__all__ = ["SHIPPED", "Pipeline", "PipelinePrediction", "Stage", "pipeline", "read_pipeline"]
