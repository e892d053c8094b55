def train_loader(cfg):
    ds = (wds.WebDataset(cfg.shards, shardshuffle=True, seed=cfg.seed, nodesplitter=lambda src: src)
            .shuffle(2000).decode("pil").to_tuple("jpg", "cls", "__key__").map_tuple(aug, int, str))
    return wds.WebLoader(ds, batch_size=64, num_workers=8).with_epoch(15625)
