    # steady state
    for i in range(n_steady):
        if stage == 0:
            y = fwd(next(mb))
            dist.send(y, dst=1)
            dist.recv(gbuf, src=1)
            bwd(i, gbuf)
        else:
            g = bwd(i)                      # backward of the previous microbatch
            dist.send(g, dst=0)
            dist.recv(xbuf, src=0)
            loss[i + 1] = fwd(xbuf)
