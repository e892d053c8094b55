        if step % args.save_steps == 0:
            if accelerator.is_main_process:
                print(f"Saving checkpoint to {path} ...")
                sd = model.state_dict()
                torch.save(sd, os.path.join(path, "pytorch_model.bin"))
            accelerator.wait_for_everyone()
