"""The evidence store: rows in DuckDB, their schema, and read-only queries."""
