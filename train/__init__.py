"""What does one rank do?"""
