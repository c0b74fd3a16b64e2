"""Engines that are SGLang servers."""
