"""An investigation on many hosts: who is asked and how, and how the answers become one bundle."""
