"""The command line `eigen`."""
