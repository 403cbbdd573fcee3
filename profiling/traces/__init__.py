"""Convert traces to jobs: the files to convert, the tables of their ranks, and which ranks form a job."""
