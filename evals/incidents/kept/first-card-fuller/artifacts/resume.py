ckpt = torch.load(args.resume)
model.load_state_dict(ckpt["model"])
