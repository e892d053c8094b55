"""The differential diagnosis: matches findings against the playbooks and ranks the causes."""
