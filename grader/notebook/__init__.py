"""Problems as nbgrader notebooks: built, worked on, and graded outside the learner's kernel.

The cells of a notebook import `checks` alone; everything else serves the instructor's side.
"""
