"""What is in a folder of results, and which runs count?"""
