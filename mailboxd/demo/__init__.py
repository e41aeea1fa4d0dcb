"""`mailboxd demo`: a real exchange of files between two devices, on a server started for it and stopped after it."""
