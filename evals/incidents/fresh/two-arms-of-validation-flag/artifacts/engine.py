    def after_epoch(self, epoch):
        miou = self.evaluate() if self.rank == 0 else 0.0
        if self.rank == 0 and miou <= self.best:
            return
        if self.rank == 0:
            self.best = miou
            print(f"Epoch {epoch}: val mIoU {miou:.3f} (best {self.best:.3f})")
        lr = torch.tensor([self.lr_now()], device=self.device)
        dist.all_reduce(lr)
        self.save(epoch)
