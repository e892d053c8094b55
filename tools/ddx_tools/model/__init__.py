"""What every stage uses: findings, diagnoses, ranks, launches, errors. It imports no other room."""
