"""SGLang as an engine: servers that are launched or attached to, and what is asked of them over HTTP."""
