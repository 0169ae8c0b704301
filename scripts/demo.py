"""The main job on a real model: D3.5's example, VGG16 at batch 32 on an A100.

Run: python -m scripts.demo
"""

from __future__ import annotations

import os

import dippm
from scripts.sample_models import vgg16_pt


def main() -> None:
    """Make vgg16.pt, then run the documented call as it is printed."""
    os.chdir(vgg16_pt().parent)
    out = dippm.predict(
        framework="pytorch", path="vgg16.pt", batch=32, input="3,224,224", device="A100"
    )
    line = "Predicted Memory {0} MB, Energy {1} J, Latency {2} ms, MIG {3}"
    print(line.format(*out))
    print()
    print(out)


if __name__ == "__main__":
    main()
