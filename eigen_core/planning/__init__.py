"""The memory, disk space, uploads and time that a run will need, and settings with which it would fit a machine."""
