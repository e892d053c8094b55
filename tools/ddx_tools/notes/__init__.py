"""What people write about a job: which files are notes, and what they report."""
