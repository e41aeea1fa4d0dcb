"""What runs with nobody waiting: the outbox is dispatched, wake pushes are sent, what is over is cleaned up."""
