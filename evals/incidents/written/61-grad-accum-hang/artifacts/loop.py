    for it, batch in enumerate(loader):
        x, y = batch["x"].cuda(non_blocking=True), batch["y"].cuda(non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x, y)
        if not torch.isfinite(loss):
            n_bad += 1
            opt.zero_grad(set_to_none=True)
            continue                       # drop the bad batch
        scaler.scale(loss / accum).backward()
        if (it + 1) % accum == 0:
            scaler.step(opt); scaler.update()
            opt.zero_grad(set_to_none=True)
        if it % 10 == 0:
            l = loss.detach().clone()
            dist.all_reduce(l, op=dist.ReduceOp.AVG)
            if rank == 0: pbar.set_postfix(loss=l.item(), bad=n_bad)
