METRICS = {"loss", "top1", "top5", "aux"}

@torch.no_grad()
def validate(model, loader, device):
    sums, n = run_epoch(model, loader, device)        # dict of floats for this rank's part
    out = {}
    for name in METRICS:
        t = torch.tensor(sums[name] / n, device=device)
        dist.all_reduce(t, op=dist.ReduceOp.AVG)
        out[name] = t.item()
    if dist.get_rank() == 0:
        print_table(out)
    return out
