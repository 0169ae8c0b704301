"""`python -m dataset.collect`."""

from __future__ import annotations

import sys

from dataset.collect.cli import main

sys.exit(main())
