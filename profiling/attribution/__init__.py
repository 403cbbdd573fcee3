"""Whose work is each kernel: batch, stage, operator, layer?"""
