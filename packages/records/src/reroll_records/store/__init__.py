"""What lies in a store: rows, lines, files, who they are of, and how lines are appended. The standard library alone,
but for DuckDB where there is nothing but Parquet."""
