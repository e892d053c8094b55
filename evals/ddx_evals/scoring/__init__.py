"""Scores answers against the truth of an incident in code, without a model as judge."""

from ddx_evals.scoring.case_score import CaseScore, score
from ddx_evals.scoring.grounding import Grounding, Replayed
from ddx_evals.scoring.transcript import (
    TRANSCRIPT,
    Efficiency,
    ToolCall,
    Transcript,
    efficiency,
    quotable_texts,
)

__all__ = [
    "TRANSCRIPT",
    "CaseScore",
    "Efficiency",
    "Grounding",
    "Replayed",
    "ToolCall",
    "Transcript",
    "efficiency",
    "quotable_texts",
    "score",
]
