"""One file for each kind of load. A scenario drives a running server and returns its figures and its verdict."""
