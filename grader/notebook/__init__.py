"""Problems as nbgrader notebooks: built, worked on, and graded outside the learner's kernel.

Only `layout`, `commands` and `course` are for the instructor's side of a course; a notebook itself
imports `checks` and nothing else.
"""
