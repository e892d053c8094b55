    net = timm.create_model(args.arch, num_classes=1000).to(dev)
    net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[args.local_rank], broadcast_buffers=False)
    opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
    if args.resume and dist.get_rank() == 0:
        sd = torch.load(args.resume, map_location="cpu")
        net.module.load_state_dict(sd["state_dict"])
        logging.info("resumed from %s (epoch %d)", args.resume, sd["epoch"])
    dist.barrier()
