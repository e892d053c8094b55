loss = criterion(model(x), y)
loss.backward()
opt.step()
if rank == 0:
    writer.add_scalar("train/loss", loss.item(), step)
