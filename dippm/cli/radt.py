"""`radt`: radT's command with its flags, which are those of `dippm track`."""

from __future__ import annotations

import sys

from dippm.base.interrupt import end_at_once


def main() -> None:
    """Run `dippm track` with the arguments of `radt`."""
    end_at_once()
    from dippm.cli.app import main as run

    sys.argv = [sys.argv[0], "track", *sys.argv[1:]]
    run()


if __name__ == "__main__":
    main()
