tok = AutoTokenizer.from_pretrained(cfg.base)
tok.add_special_tokens({"additional_special_tokens": ["<|tool|>", "<|/tool|>", "<|obs|>"]})
tok.pad_token = tok.eos_token
model = AutoModelForCausalLM.from_pretrained(cfg.base, torch_dtype=torch.bfloat16)
model.gradient_checkpointing_enable()
# (trainer setup unchanged)
