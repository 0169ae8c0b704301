"""Cost of serving language models, from their configuration alone, without weights.

config        a config.json or its content
reading       its fields → `Decoder` (`fields` checks values, `families` knows what goes unsaid)
architecture  `Decoder`: sizes, and how many weights they make
formats       formats of stored weights
setting       how a model is run
kernels       kernels of a language model; `engine` and `eager` list those of a pass
memory        memory of the GPU, with the cache of keys and values
clock         time of each kernel (`corrections`: learned from operators of serving engines)
parallel      the shard of one of several GPUs, and their communication
passes        cost of a pass (a prompt, or one more token), monotonic in batch and context
serving       the question; `answer`: the answer
"""

from dippm.decide.language.answer import LanguagePrediction
from dippm.decide.language.architecture import Decoder
from dippm.decide.language.config import read_decoder
from dippm.decide.language.serving import language_model

__all__ = ["Decoder", "LanguagePrediction", "language_model", "read_decoder"]
