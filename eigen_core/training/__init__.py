"""Runs of a store: how they are found and continued, what is remembered of them, and who hears how one is trained."""
