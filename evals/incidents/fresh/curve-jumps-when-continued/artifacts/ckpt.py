def save(path):
    if rank == 0:
        torch.save({"model": m.state_dict(), "opt": o.state_dict(), "rng": torch.get_rng_state(), "cuda_rng": torch.cuda.get_rng_state()}, path)
def load(path):
    c = torch.load(path, map_location="cpu")
    m.load_state_dict(c["model"]); o.load_state_dict(c["opt"])
    torch.set_rng_state(c["rng"]); torch.cuda.set_rng_state(c["cuda_rng"])
