"""What TAU recorded of applications and of MPI, and what the reference made of it."""
