"""How a run is started, and started again."""
