"""The differential: findings are matched against the playbooks, and causes are ranked."""
