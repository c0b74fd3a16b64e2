"""One pass over all rows in bounded memory, and exact statistics. The standard library alone."""
