"""`python -m dippm` is the command `dippm`."""

from dippm.cli.app import main

main()
