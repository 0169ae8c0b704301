"""`python -m dataset.croissant`: see `dataset.cards.croissant`."""

from __future__ import annotations

from dataset.cards.croissant import main

if __name__ == "__main__":
    main()
