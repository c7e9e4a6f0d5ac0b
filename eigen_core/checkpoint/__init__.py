"""Checkpoints: the store (a folder or bucket) has a generation completely, each file with a checksum, or not at all."""
