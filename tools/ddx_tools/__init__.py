"""Mechanisms of the differential diagnosis: hosts, probes, formats, evidence store, playbooks.

Data moves one way: a host captures raw material, formats parse it into rows, probes turn the merged rows
into findings, and the differential judges findings by the playbooks. A later stage never reaches back.
"""

__version__ = "0.1.0"
