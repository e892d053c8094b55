"""Evaluation of ddx: the lab of real jobs, the recorded incidents and the scorers."""
