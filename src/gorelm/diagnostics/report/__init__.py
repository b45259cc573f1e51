"""What the pages of the library share: skeleton, style, sorting, tables and pictures."""
