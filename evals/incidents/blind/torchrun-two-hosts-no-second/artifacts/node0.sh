torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_endpoint=10.9.0.1:29400 --rdzv_id=exp17 train.py
