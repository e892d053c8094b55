"""Analysis of collectives across all sources: who takes part, who waits for whom, and which rank deviates."""
