#SBATCH --ntasks-per-node=4 --gpus-per-task=1
srun python t.py   # torch.cuda.set_device(int(os.environ["SLURM_LOCALID"]))
