"""`python -m dataset.datasheet`: see `dataset.cards.datasheet`."""

from __future__ import annotations

from dataset.cards.datasheet import main

if __name__ == "__main__":
    main()
