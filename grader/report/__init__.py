"""What people read after a grading: terminal, HTML page, Perfetto trace."""
