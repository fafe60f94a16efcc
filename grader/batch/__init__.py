"""`distlab batch`: many submissions of several problems, graded one after another or in parallel.

entries.py finds out who handed in what, runner.py has it graded, journal.py keeps the verdicts,
handback.py writes what goes back to learners, grade_sheet.py the CSV file, and command.py is what
the instructor calls.
"""
