"""The paths between hosts, tried out: ports, packet sizes, loss, throughput, and captures of packets."""
