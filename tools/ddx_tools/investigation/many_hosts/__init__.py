"""An investigation on many hosts: how they are asked, and how their answers become one bundle."""
