"""What NCCL prints."""
