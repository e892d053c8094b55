model = DDP(model, device_ids=[local_rank], bucket_cap_mb=4096)
