"""What stands in for packages that a host without ddx lacks, in the archive that is sent there."""
