model = DDP(net, device_ids=[local_rank])
for x, y in loader:
    feats = model.module.encode(x)
    loss = crit(model.module.head(feats), y)
    loss.backward()
    opt.step()
