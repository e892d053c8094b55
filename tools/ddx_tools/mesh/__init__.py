"""The grid of a job's ranks: which parallel dimensions there are, who stands where, and which groups that makes."""
