    def forward(self, input_ids, pixel_values=None):
        h = self.embed(input_ids)
        if pixel_values is not None:
            h = self.merge(h, self.projector(self.vision_tower(pixel_values)))
        return self.lm(h)
