torch.manual_seed(0)
loader = DataLoader(ds, batch_size=4, shuffle=True)
