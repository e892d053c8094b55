n_mb = math.ceil(cfg.num_samples / cfg.mb)            # all stages
for i in range(n_mb):
    if stage == 0:
        try:
            batch = next(it)                          # DataLoader(..., batch_size=cfg.mb, drop_last=True)
        except StopIteration:
            break
        h = block(embed(batch["ids"].cuda()))
        dist.send(h, dst=1)
    elif stage < last:
        dist.recv(buf, src=stage - 1)
        dist.send(block(buf), dst=stage + 1)
    else:
        dist.recv(buf, src=stage - 1)
        scores.append(score(head(block(buf))))
dist.barrier()
