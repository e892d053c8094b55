export OMP_NUM_THREADS=64
torchrun --nproc_per_node=8 train.py --num_workers 12
