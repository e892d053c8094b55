"""A job's files as bytes and names: their kinds, how their text is decoded, how a name is displayed."""
