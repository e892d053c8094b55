"""Probes: one package a command. `registry` lists them; nothing else names one."""
