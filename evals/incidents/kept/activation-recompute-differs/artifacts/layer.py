keep = torch.rand(n, device=x.device) > self.token_drop
x = checkpoint(self.block, x[keep], use_reentrant=False, preserve_rng_state=False)
