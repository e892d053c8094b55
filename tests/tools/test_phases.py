"""In which phase of training a stack is: the rules of knowledge/phases.yaml on stacks as frameworks have them."""

from __future__ import annotations

import pytest

from ddx_tools.knowledge.load import shipped
from ddx_tools.knowledge.phases import beside_step, in_step, phase_of, phase_words
from ddx_tools.model.stack_frame import Frame

C10D = "torch/distributed/distributed_c10d.py:barrier"
LIGHTNING = "lightning/pytorch/loops/training_epoch_loop.py:_TrainingEpochLoop.advance"


def phase(*calls: str) -> str | None:
    """Of a stack, from `file:function` outermost first."""
    pairs = (call.rpartition(":") for call in calls)
    frames = [Frame(f"/v/lib/python3.11/site-packages/{file}", 10, function) for file, _, function in pairs]
    return phase_of(frames[::-1])


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        (
            (LIGHTNING, "torch/optim/adam.py:Adam.step", "lightning/pytorch/core/module.py:LightningModule.log"),
            "logging",
        ),
        ((LIGHTNING, "lightning/pytorch/loops/evaluation_loop.py:_EvaluationLoop.run"), "validation"),
        (
            (
                LIGHTNING,
                "lightning/pytorch/loops/evaluation_loop.py:_EvaluationLoop.run",
                "lightning/pytorch/trainer/connectors/logger_connector/result.py:_ResultMetric.compute",
            ),
            "validation",
        ),
        ((LIGHTNING, "lightning/pytorch/trainer/trainer.py:Trainer.save_checkpoint"), "checkpoint"),
        ((LIGHTNING, "lightning/pytorch/trainer/call.py:_call_callback_hooks"), "callback"),
        ((LIGHTNING,), "between_steps"),
        (("transformers/trainer.py:Trainer.evaluation_loop", "torch/nn/modules/module.py:_call_impl"), "validation"),
        (("transformers/trainer.py:Trainer.training_step", "torch/_tensor.py:Tensor.backward"), "backward"),
        (("transformers/trainer.py:Trainer._finalize_training",), "finished"),
        (("accelerate/accelerator.py:Accelerator.backward",), "backward"),
        (("torch/_tensor.py:Tensor.backward", "torch/distributed/fsdp/_param.py:unshard"), "backward"),
        (("accelerate/data_loader.py:DataLoaderShard.__iter__",), "dataloader"),
        (("deepspeed/runtime/engine.py:DeepSpeedEngine.save_checkpoint",), "checkpoint"),
        (("deepspeed/runtime/engine.py:DeepSpeedEngine.step",), "optimizer"),
        (("torch/nn/modules/module.py:_call_impl", "torch/distributed/fsdp/_param.py:unshard"), "forward"),
        (("megatron/training/training.py:evaluate_and_print_results",), "validation"),
        ((), None),
    ],
)
def test_the_innermost_frame_beside_the_step_tells_or_else_the_innermost_of_the_step(
    calls: tuple[str, ...], found: str | None
) -> None:
    assert phase(*calls, C10D) == found


def test_a_phase_is_of_the_step_or_beside_it_and_has_words() -> None:
    for part in ("beside_step", "step"):
        for rule in shipped("phases.yaml")[part]:
            assert phase_words(rule["phase"])
            assert (beside_step(rule["phase"]), in_step(rule["phase"])) == (part == "beside_step", part == "step")
