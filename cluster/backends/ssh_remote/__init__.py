"""What the ssh backend sends to remote machines. Standard library of Python 3.9 only."""
