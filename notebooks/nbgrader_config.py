"""Settings of this nbgrader course; `distlab notebook build` wrote them once and keeps yours."""

from grader.notebook.course import configure

c = get_config()
c.CourseDirectory.course_id = "distlab"
configure(c)
