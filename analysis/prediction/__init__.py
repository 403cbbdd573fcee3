"""What would more ranks give?"""
