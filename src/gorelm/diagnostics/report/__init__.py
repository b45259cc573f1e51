"""Shared parts of the HTML pages: skeleton, style, sorting, tables and pictures."""
