"""What a person wrote about a job."""
