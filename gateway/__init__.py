"""The doors: one port for `/v1/ws` and HTTP, the sessions behind it, and the operations port."""
