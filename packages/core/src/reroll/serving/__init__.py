"""Serving: engines, and the routing between them."""
