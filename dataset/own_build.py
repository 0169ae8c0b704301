"""`python -m dataset.own_build`: see `dataset.build_collected`."""

from __future__ import annotations

from dataset.build_collected import main

if __name__ == "__main__":
    main()
