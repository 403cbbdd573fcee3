"""Which traces are of one job, and what do they become?"""
