"""Published networks that no library of the environment brings, as plain modules of our own.

Their sizes are those of the published configurations. Weights they have none: what they are for is
the graph (`dippm:NAME`, see `published`), and `dataset` times some of them.

diffusion_unet          the U-Nets of Stable Diffusion 1.x and XL
diffusion_transformers  DiT, Latte, the transformers of Stable Diffusion 3 and of FLUX.1
autoencoder             the decoder from latent places to pixels
speech                  the decoder of Whisper, one token at a time with what it keeps
fields                  networks over fields of the weather, after the applications of MAELSTROM
library                 parts of models of torchvision and transformers, by published sizes
published               those that have a name: parameters that were published, inputs
"""
