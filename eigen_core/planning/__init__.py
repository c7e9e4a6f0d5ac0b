"""Memory, disk, uploads and time of a run before it starts, and settings that would make it fit."""
