"""Which ranks are late, and why?"""
