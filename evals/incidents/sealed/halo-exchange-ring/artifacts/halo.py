def exchange(u, left, right):
    # send my edge to the right neighbour, get his from the left
    dist.send(u[..., -2:].contiguous(), dst=right)
    buf = torch.empty_like(u[..., :2])
    dist.recv(buf, src=left)
    return buf
# called as exchange(u, (rank - 1) % world, (rank + 1) % world)
