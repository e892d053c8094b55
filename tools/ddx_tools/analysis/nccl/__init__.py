"""Access to the stored rows of NCCL logs and RAS reports, for analyses."""
