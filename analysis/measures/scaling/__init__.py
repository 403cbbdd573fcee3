"""How does a configuration scale, what is lost, and at what expense?"""
