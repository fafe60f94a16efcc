"""Grade a problem package that stands in a folder of its own; print the result as JSON.

grade_folder.py PACKAGE SOLUTION BACKEND
"""

from __future__ import annotations

import sys
from pathlib import Path

from cluster import enclosure
from grader import package, submission
from grader.backend_choice import choose


def main() -> None:
    place = choose(sys.argv[3], None)
    if place.needs_enclosure:
        enclosure.enter()
    # Imported here: numpy starts threads, and an enclosure is entered before there are any.
    from grader.result_json import to_json
    from grader.seeds import Seed
    from grader.session import Order, grade, open_stand

    problem = package.load(Path(sys.argv[1]))
    handed_in = submission.read(Path(sys.argv[2]), problem)
    stand = open_stand(problem, place.factory())
    result = grade(Order(problem, handed_in, Seed.fresh()), stand)
    print(to_json(result))


if __name__ == "__main__":
    main()
