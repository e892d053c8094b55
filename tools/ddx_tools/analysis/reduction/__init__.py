"""Reduces much material to its distinctive lines: those that few texts, ranks or moments share. Knows no incident."""
