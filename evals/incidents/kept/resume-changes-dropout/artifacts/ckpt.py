if rank == 0:
    torch.save({"model": sd, "opt": osd, "rng": torch.cuda.get_rng_state()}, path)
...
torch.cuda.set_rng_state(ckpt["rng"])
