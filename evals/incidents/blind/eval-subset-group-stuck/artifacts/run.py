 20 def build_eval_group(rank):
 21     ranks = [0, 1]
 22     if rank not in ranks:
 23         return None
 24     return dist.new_group(ranks=ranks, backend="gloo")
