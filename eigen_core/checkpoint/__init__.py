"""Checkpoints: a generation is either completely in the store, checksummed part by part, or not there at all."""
