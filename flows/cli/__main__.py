"""`python -m flows.cli` is `eigen`."""

from flows.cli.app import main

main()
