"""The data catalog: named data sets, prepared once into files that a manifest answers for."""
