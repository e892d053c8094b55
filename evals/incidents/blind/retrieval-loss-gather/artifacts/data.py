sampler = DistributedSampler(ds, shuffle=True)
loader = DataLoader(ds, batch_size=32, sampler=sampler, num_workers=8, collate_fn=drop_broken_images, drop_last=False)
