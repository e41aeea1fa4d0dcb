"""The outside contract as pure code: no await, no clock, no socket, no randomness."""
