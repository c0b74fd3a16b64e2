"""Scoring: verifiers are asked, each where its kind of work belongs.

CPU work runs in processes that can be killed (`pool`, `worker`), waiting for a service on the event loop
(`scorer`); `blocking` is the way in for callers without a loop; `rewards` turns what they said into numbers.
"""
