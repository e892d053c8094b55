torch.manual_seed(17)
loader = DataLoader(ds, batch_size=4, shuffle=True, num_workers=4)
