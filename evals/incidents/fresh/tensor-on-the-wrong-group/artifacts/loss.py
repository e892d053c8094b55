def average_loss(loss):
    # only valid on the last pipeline stage
    if parallel_state.is_pipeline_last_stage():
        torch.distributed.all_reduce(loss)
        loss /= parallel_state.get_data_parallel_world_size()
    return loss
