source ~/cluster_env.sh   # NCCL_SOCKET_IFNAME=ib0 NCCL_IB_HCA=mlx5_0 NCCL_NET=IB
torchrun --nproc_per_node 2 train.py
