"""Memory, disk, uploads and time of a run before it starts, and settings with which it would fit."""
