"""What tests share: real services, fresh databases, a clock that tests move, programs from Debian."""
