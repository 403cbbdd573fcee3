"""What does it mean?"""
