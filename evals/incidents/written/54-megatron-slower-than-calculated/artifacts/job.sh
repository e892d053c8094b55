#SBATCH -N 8
#SBATCH --ntasks-per-node=8
#SBATCH --gres=gpu:8
#SBATCH --distribution=cyclic
export RANK_FROM=SLURM_PROCID LOCAL_FROM=SLURM_LOCALID
export CUDA_DEVICE_MAX_CONNECTIONS=1
srun --cpu-bind=none bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=64 python pretrain_gpt.py \
   --tensor-model-parallel-size 8 --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce $ARGS'
