plan = {
    "attn.wq": ColwiseParallel(),
    "attn.wo": RowwiseParallel(output_layouts=Shard(1)),
    "norm": SequenceParallel(),
}
# self.scale = nn.Parameter(torch.ones(dim)) lives in Block
