"""What listeners' programs use: find songs, and fetch them."""
