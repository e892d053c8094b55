docker run --rm -d --gpus '"device=0,1"' -p 8000:8000 -v /data/hf:/root/.cache/huggingface \
  -e NCCL_P2P_DISABLE=1 -e NCCL_DEBUG=WARN vllm/vllm-openai:v0.6.4 \
  --model Qwen/Qwen2.5-14B-Instruct-AWQ --tensor-parallel-size 2 --gpu-memory-utilization 0.85
