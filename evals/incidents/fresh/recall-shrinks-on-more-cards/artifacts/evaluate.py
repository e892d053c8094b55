@torch.no_grad()
def evaluate(model, ds, gallery):
    sampler = DistributedSampler(ds, shuffle=False, drop_last=False)
    loader = DataLoader(ds, batch_size=256, sampler=sampler, num_workers=4)
    hit1 = hit5 = 0
    for q, gt in loader:
        top = (model(q.cuda()) @ gallery.T).topk(5, dim=1).indices.cpu()
        hit1 += (top[:, 0] == gt).sum().item()
        hit5 += (top == gt[:, None]).any(1).sum().item()
    if is_main():
        n = len(ds)
        logger.info(f"[eval] queries {n}  R@1 {hit1 / n:.4f}  R@5 {hit5 / n:.4f}  ...")
