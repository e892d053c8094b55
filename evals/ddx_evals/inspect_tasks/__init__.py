"""The incidents as a task of Inspect: its models, agents, limits, logs and viewer, our server and our scores."""
