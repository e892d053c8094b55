# ... (cut)
class Meter:
    SCALAR = {"loss"}
    CURVE = {"conf_hist"}

    def sync(self):
        out = {}
        for name in self.SCALAR | self.CURVE:
            v = self.buf[name]                       # cuda tensor
            if name in self.CURVE:
                parts = [torch.empty_like(v) for _ in range(dist.get_world_size())]
                dist.all_gather(parts, v)            # keep per-rank histograms
                out[name] = torch.stack(parts)
            else:
                dist.all_reduce(v)
                out[name] = (v / dist.get_world_size()).item()
        return out
