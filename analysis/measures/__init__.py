"""One quantity a file: tables of runs in, a table out."""
