"""What is in the files that the tools write, as events?"""
