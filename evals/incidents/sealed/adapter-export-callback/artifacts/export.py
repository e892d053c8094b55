class Export(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **kw):
        if state.is_world_process_zero and state.global_step % 500 == 0:
            sd = {k: v for k, v in model.state_dict().items() if "lora_" in k}
            torch.save(sd, f"{args.output_dir}/lora-{state.global_step}.pt")
