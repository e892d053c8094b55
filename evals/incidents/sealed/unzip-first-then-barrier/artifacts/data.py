    def prepare_data(self):
        if not (self.root / "train").exists():
            extract(self.root / "train.tar")
