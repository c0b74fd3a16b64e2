"""Scoring: verifiers are asked, each where its kind of work belongs.

CPU work runs in processes that can be killed (`pool`, `worker`), waiting for a service on the event loop
(`scorer`); `rewards` turns what they said into numbers.
"""
