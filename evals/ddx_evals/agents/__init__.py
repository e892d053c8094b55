"""The agents to score: their task and tools, their workplace, and their answers."""
