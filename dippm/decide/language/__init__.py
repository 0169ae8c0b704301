"""Language models by their configuration, without weights: what serving them costs.

config        a config.json or its content
reading       its fields → `Decoder` (`fields` checks values, `families` knows what goes unsaid)
architecture  `Decoder`: sizes, and how many weights they make
formats       in which format weights are stored
setting       how a model is run
kernels       kernels of a language model; `engine` and `eager` list those of a pass
cache, memory what is kept, and what the GPU holds in all
clock         how long each kernel takes (`corrections`: what operators of engines add)
parallel      the part of one of several GPUs, and what they exchange
ordered       times over batch and context that keep what physics orders
passes        what a pass costs: a prompt, or one token more
serving       the question; `answer`: what it answers
"""

from dippm.decide.language.answer import LanguagePrediction
from dippm.decide.language.architecture import Decoder
from dippm.decide.language.config import read_decoder
from dippm.decide.language.serving import language_model

__all__ = ["Decoder", "LanguagePrediction", "language_model", "read_decoder"]
