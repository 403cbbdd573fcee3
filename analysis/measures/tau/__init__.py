"""What did TAU record of applications, and of MPI? And what the reference made of its tables."""
