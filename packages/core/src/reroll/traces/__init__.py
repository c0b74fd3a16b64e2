"""Traces on disk, and the samples that training takes from them."""
