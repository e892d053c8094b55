    for x, y in DataLoader(val, sampler=DistributedSampler(val, shuffle=False), batch_size=50):
        correct += (model(x.cuda()).argmax(1) == y.cuda()).sum().item()
        total += len(y)
    if rank == 0:
        print(f"val acc {100 * correct / total:.2f} % ({correct} of {total})")
