"""Workers as actors of a Ray cluster.

`placement` and `config` import neither Ray nor asyncio: `plan` looks at them.
"""
