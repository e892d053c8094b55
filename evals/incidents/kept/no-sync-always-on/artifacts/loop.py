for i, batch in enumerate(loader):
    with model.no_sync():
        loss = model(batch) / accum
        loss.backward()
    if (i + 1) % accum == 0:
        opt.step()
        opt.zero_grad()
