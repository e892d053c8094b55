"""The incidents as an Inspect task: Inspect's models, agents, limits, logs and viewer, with our server and scores."""
