"""What the package registers: nothing yet, so that a run which needs it is told so."""
