"""`python -m dataset.raw_graphs`: see `dataset.join.raw_graphs`."""

from __future__ import annotations

from dataset.join.raw_graphs import main

if __name__ == "__main__":
    main()
