"""Folders that outlast a run: what compilers have made."""
