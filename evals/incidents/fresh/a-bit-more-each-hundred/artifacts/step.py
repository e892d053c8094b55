        loss = crit(out, y)
        loss.backward()
        opt.step(); opt.zero_grad()
        self.history.append(loss)
        if len(self.history) % 100 == 0:
            log(sum(self.history[-100:]) / 100)
