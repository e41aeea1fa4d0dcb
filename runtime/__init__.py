"""What every process needs: configuration, logs, metrics, clock, doorbell, supervision, fault points."""
