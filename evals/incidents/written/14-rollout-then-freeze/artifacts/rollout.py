with FSDP.summon_full_params(model, writeback=False, recurse=False):
    seqs = model.generate(ids, attention_mask=mask, max_new_tokens=cfg.max_new, do_sample=True, top_p=0.95, pad_token_id=tok.pad_token_id)
rew = reward_fn(tok.batch_decode(seqs))          # cpu, 4 prompts per rank
all_rew = [torch.empty_like(rew) for _ in range(world)]
dist.all_gather(all_rew, rew)
