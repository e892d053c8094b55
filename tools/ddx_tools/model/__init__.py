"""Models that every stage uses: findings, diagnoses, ranks, launches, errors. Imports no other package of ddx."""
