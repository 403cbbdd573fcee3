"""What arithmetic and traffic has an operator, and what class is a kernel of?"""
