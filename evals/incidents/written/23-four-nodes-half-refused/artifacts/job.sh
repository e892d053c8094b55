#!/bin/bash
#SBATCH -N 4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
srun bash -c '
  export MASTER_ADDR=$(hostname -s)
  export MASTER_PORT=29541
  torchrun --nnodes=$SLURM_NNODES --nproc_per_node=4 --node_rank=$SLURM_NODEID \
     --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT train_gpt.py configs/gpt_1b.yaml
'
