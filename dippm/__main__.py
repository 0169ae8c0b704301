"""`python -m dippm` is the command `dippm`; both start here."""

from dippm.base.interrupt import end_at_once


def main() -> None:
    """Run the command line."""
    end_at_once()
    from dippm.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
