model = DDP(CaptionModel(cfg).to(rank), device_ids=[rank])
scaler = GradScaler()
for it, (img, cap) in enumerate(loader):
    with autocast():
        feats = model.module.encode(img.to(rank))
        loss = model.module.decoder_loss(feats, cap.to(rank))
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    gn = torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    scaler.step(opt); scaler.update()
    if it % 20 == 0:
        print(f"{rank}: it {it} loss {loss.item():.4f} |g|={gn.item():.5f}", flush=True)
