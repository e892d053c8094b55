"""The post-mortem of a job: filled in as far as the evidence goes, with questions for the rest."""
