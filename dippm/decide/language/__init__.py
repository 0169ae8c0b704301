"""Cost of serving language models, from their configuration alone, without weights.

reading       a config.json or its content → `Decoder` (`families`: what its fields leave unsaid)
architecture  `Decoder`: sizes, and how many weights they make
setting       how a model is run, and formats of stored weights
kernels       kernels of a language model; `pass_kernels` lists those of a pass
memory        memory of the GPU, with the cache of keys and values
clock         time of each kernel (`corrections`: learned from operators of serving engines)
passes        cost of a pass (a prompt, or one more token), monotonic in batch and context, and the
              shard of one of several GPUs
serving       the question; `answer`: the answer
"""

from dippm.decide.language.answer import LanguagePrediction
from dippm.decide.language.architecture import Decoder
from dippm.decide.language.reading import read_decoder
from dippm.decide.language.serving import language_model

__all__ = ["Decoder", "LanguagePrediction", "language_model", "read_decoder"]
