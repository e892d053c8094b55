import os
os.environ["WANDB_PROJECT"] = "dpo-small"
os.environ["CUDA_VISIBLE_DEVICES"] = "2"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
import torch
from accelerate import PartialState
from trl import DPOConfig, DPOTrainer
