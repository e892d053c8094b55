"""Many hosts: who is asked and by which way, what a host answers, and how the answers become one bundle."""
