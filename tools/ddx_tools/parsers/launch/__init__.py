"""What a job was started with: environments, scripts, settings."""
