"""The evidence store: parsed rows in DuckDB, their schema, and read-only queries."""
