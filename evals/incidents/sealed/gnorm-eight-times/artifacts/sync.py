for p in model.parameters():
    dist.all_reduce(p.grad)
