#SBATCH --nodes=2
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=2
#SBATCH --mem-per-cpu=4G
srun python load_and_train.py
