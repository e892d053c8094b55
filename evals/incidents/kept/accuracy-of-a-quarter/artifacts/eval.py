    for x, y in val_loader:            # DistributedSampler
        correct += (model(x).argmax(1) == y).sum().item()
    acc = correct / len(val_loader.dataset)
    if rank == 0:
        print("val acc", acc)
