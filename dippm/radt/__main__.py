"""`python -m dippm.radt` is the command `radt`, as `python -m radt` was."""

from dippm.cli.radt import main

if __name__ == "__main__":
    main()
