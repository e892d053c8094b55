def sync_new_rows(module):
    group = mpu.get_data_parallel_group()
    for p in module.word_embeddings.parameters():
        torch.distributed.broadcast(p.data, src=0, group=group)
