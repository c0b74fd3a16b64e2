"""What a run tells: metrics, the display, the summary."""
