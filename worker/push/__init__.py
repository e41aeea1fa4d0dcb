"""The push providers, one each, behind one small interface. Content is never pushed."""
