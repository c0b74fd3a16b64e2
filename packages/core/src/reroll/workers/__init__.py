"""Processes of our own: how one is started, called, and found dead.

The room knows nothing of engines, trainers or verifiers: a worker is a class, named as `module:Class`,
whose methods are called from the controller.
"""
