"""What MILES calls things. A dial is one option of a file of MILES, with its answer: our key, or why there is none.
Keys of our own run files are called keys."""
