"""What is to be run, where, and has it run?"""
