dist.init_process_group("nccl", timeout=timedelta(seconds=5))
