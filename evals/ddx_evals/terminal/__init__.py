"""What all evaluation commands share: their options and the printer of tables. Light to import."""
