pairs = [(0, 1), (1, 2), (2, 3), (3, 0)]
mine = []
for pair in pairs:
    if dist.get_rank() in pair:
        mine.append(dist.new_group(list(pair), backend="gloo"))
dist.barrier()
