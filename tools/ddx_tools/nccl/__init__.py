"""What NCCL's logs of all ranks say together: communicators, connections, operations."""
