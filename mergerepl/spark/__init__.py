"""The embedded Spark engine: Java, JARs, JVM and session confs."""
