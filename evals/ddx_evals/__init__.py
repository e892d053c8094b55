"""Evaluation of ddx: the lab of real jobs, recorded incidents and scorers."""
