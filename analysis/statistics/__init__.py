"""How sure is a number?"""
