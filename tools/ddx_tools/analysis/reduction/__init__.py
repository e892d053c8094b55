"""What of much material separates: lines that few texts, ranks or moments have. No means here knows an incident."""
