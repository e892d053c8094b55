model = DDP(net.cuda(), device_ids=[rank])
torch.manual_seed(1000 + rank)
model.module.head.apply(init_weights)
