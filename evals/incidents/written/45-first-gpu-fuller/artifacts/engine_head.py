def main_worker(local_rank, world, cfg):
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{cfg.port}", rank=local_rank, world_size=world)
    device = torch.device("cuda", local_rank)
    ck = torch.load(cfg.pretrained, weights_only=True)        # saved from cuda
    model = build_model(cfg)
    model.load_state_dict(ck["model"])
    model.to(device)
    model = DDP(model, device_ids=[local_rank])
