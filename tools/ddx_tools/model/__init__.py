"""What every stage speaks of: findings, diagnoses, ranks, launches, errors. It imports no other room."""
