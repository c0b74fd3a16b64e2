"""Files of MILES as run files: reading them, translating their controls, writing the result."""
