"""Skill or luck: statistics of returns, the count of looks at a span of days, and the claim that follows.

Its modules are imported by themselves: the ledger needs none of the libraries that the statistics need.
"""
