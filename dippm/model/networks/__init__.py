"""Published networks that are in no installed library, as plain modules of our own.

Their sizes are those of the published configurations. They have no weights: they serve for graphs
(`dippm:NAME`, see `published`), and `dataset` measures some of them.

diffusion_unet          the U-Nets of Stable Diffusion 1.x and XL, the decoder from latent images to
                        pixels
diffusion_transformers  DiT, Latte, the transformers of Stable Diffusion 3 and of FLUX.1
fields                  networks over weather fields, after the applications of MAELSTROM
library                 parts of torchvision and transformers models, in published sizes, and the
                        decoder of Whisper, one token at a time with its cache
published               the named networks: published parameter counts, inputs
"""
