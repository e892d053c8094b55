 48 for step, (x, y) in enumerate(loader):
 49     out = model(x.cuda())
 50     loss = crit(out, y.cuda())
 51     opt.zero_grad()
 52     loss.backward()
 53     opt.step()
 54     if step % 50 == 0:
 55         acc = (out.argmax(1) == y.cuda()).float().mean()
 56         if rank == 0:
 57             print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
 58         if rank == 0 and step > 0:
 59             # average over gpus
 60             t = acc.detach().clone()
 61             dist.all_reduce(t)
 62             writer.add_scalar("acc", t / world, step)
