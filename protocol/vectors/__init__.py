"""Test vectors for clients in other languages: JSON files beside the script that makes them."""
