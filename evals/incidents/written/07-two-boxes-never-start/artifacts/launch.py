def worker(local_rank, node_rank, nnodes):
    world = nnodes * 4
    rank = node_rank * 4 + local_rank
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl", rank=rank, world_size=world, timeout=timedelta(seconds=600))
    train(local_rank)

if __name__ == "__main__":
    n = torch.cuda.device_count()
    mp.spawn(worker, args=(int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])), nprocs=n)
