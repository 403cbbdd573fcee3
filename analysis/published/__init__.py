"""What did the reference compute, and what is corrected?"""
