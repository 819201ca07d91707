"""The real driver: hosts, Flight, Spark, folders and signals around the machines of ``core``."""
