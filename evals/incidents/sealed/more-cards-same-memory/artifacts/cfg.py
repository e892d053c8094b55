model = FSDP(model, sharding_strategy=ShardingStrategy.NO_SHARD, mixed_precision=bf16, device_id=local_rank)
