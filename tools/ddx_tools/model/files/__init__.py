"""Files of a job as bytes and names: what they are, how their text is decoded, how a name is shown."""
