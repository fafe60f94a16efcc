"""Where grades go: each module that has a `command` is `distlab export NAME`, named like its file.

A sink is one file. Its `command` is a typer command; `grader.export` has the arguments that all
take, and `grader.export_words` what they say of a check.
"""
