"""For `nbgrader validate` in this folder: a grading takes longer than nbgrader's 30 s a cell."""

c = get_config()
c.Execute.timeout = 900
